-- move: move the claim in the head of a queue to dibs_claims, in the transaction of an operation that has the row lock.
CREATE PROCEDURE dibs_2_move(IN p_name VARBINARY(2048))
SQL SECURITY INVOKER
BEGIN
  INSERT INTO dibs_claims (
    name, ticket, id, client, kind, capacity, weight, lease, waiting, until, asked, held, freed, revoked, about
  ) SELECT
    name, ticket, id, client, kind, capacity, weight, lease, waiting, until, asked, asked, NULL, revoked,
    IFNULL(about, '')
  FROM dibs_queues WHERE name = p_name;
  UPDATE dibs_queues SET id = '', special = 1 WHERE name = p_name;
END
