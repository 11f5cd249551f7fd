"""MySQL and MariaDB: the line in tables, one stored procedure for each verb."""
