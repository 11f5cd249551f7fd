"""The PostgreSQL store: lines in tables, one routine for each verb."""
