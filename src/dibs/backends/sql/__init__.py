"""What the SQL stores share, and how connections of the caller's own are used."""
