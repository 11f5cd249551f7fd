"""An application with invoices that have to be settled."""
