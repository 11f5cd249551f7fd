  -- The rule of core/rule.py: walk the queue in order up to the first claim that does not fit, remove expired and
  -- leaving claims, and tell the claims that hold now. A row that is being renewed is waited for, and counts.
  used_ := 0; before_ := 0; last_ := 0; floor_ := 0; next_ := 0; told_ := 0; gone_ := NULL; blocked_ := false;
  FOR w IN SELECT ticket, id, client, kind, capacity, weight, lease, until FROM {schema}.dibs_claims
           WHERE name = name_ AND ticket >= since_ ORDER BY ticket LOOP
    was_ := CASE WHEN w.ticket = amended_ THEN weighed_ ELSE w.weight END;
    held_ := before_ + was_ <= w.capacity;
    before_ := before_ + was_;
    IF w.id = ANY (leavers_) OR w.until <= now_ THEN
      DELETE FROM {schema}.dibs_claims
        WHERE name = name_ AND ticket = w.ticket AND (id = ANY (leavers_) OR until <= now_);
      IF FOUND THEN
        gone_ := w.kind;
        stood_ := stood_ OR w.id = own_;
        CONTINUE;
      END IF;
      w.until := now_ + 50000;
    ELSIF w.until > now_ + w.lease THEN
      -- A clock that was set back must not prolong a claim beyond its lease.
      UPDATE {schema}.dibs_claims SET until = now_ + lease
        WHERE name = name_ AND ticket = w.ticket AND until > now_ + lease;
      w.until := now_ + w.lease;
    END IF;
    IF floor_ = 0 THEN
      floor_ := w.ticket; next_ := w.until; first_kind_ := w.kind; first_capacity_ := w.capacity;
    ELSE
      next_ := least(next_, w.until);
    END IF;
    IF used_ + w.weight > w.capacity THEN
      blocked_ := true;
      EXIT;
    END IF;
    used_ := used_ + w.weight;
    last_ := w.ticket;
    IF NOT held_ THEN
      told_ := told_ + 1;
      IF w.client <> '' THEN
        PERFORM {schema}.dibs_2_send(w.client, w.id, 'y');
      END IF;
    END IF;
  END LOOP;
  IF gone_ = 'election' THEN
    PERFORM {schema}.dibs_2_tell('line', name_);
  END IF;
  IF told_ = 0 AND NOT blocked_ AND (gone_ IS NOT NULL OR amended_ IS NOT NULL) THEN
    FOR w IN DELETE FROM {schema}.dibs_outsiders WHERE name = name_ RETURNING client, id LOOP
      PERFORM {schema}.dibs_2_send(w.client, w.id, 'l');
    END LOOP;
  END IF;
