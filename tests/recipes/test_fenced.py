"""docs/recipes/fenced-*.md: what a stale holder writes is refused, by each of the guarded resources."""

from __future__ import annotations

import http.client
import re
from contextlib import closing

import pytest

from recipes.programs import EXAMPLES, ROOT, Connect, Program, Stage


def take_away(stage: Stage, name: str) -> None:
    """As an operator does. The holder hears of it at its next renewal, ten seconds from now: it goes on meanwhile."""
    (holder,) = stage.client.inspect(name).holders
    stage.client.break_(name, token=holder.token)


@pytest.mark.gate
def test_a_stale_decision_is_refused_once_the_next_holder_has_read(stage: Stage, shop: Connect) -> None:
    """Also before it has written: its token went ahead of its read."""
    argv, lock = ("fenced_sql.py", "shop.db", "bolt"), "stock:bolt"
    missing = stage.start(*argv)
    assert missing.end() == 1
    assert "no item 'bolt' in stock" in missing.text
    db = shop()
    db.execute("INSERT INTO stock (item, n) VALUES ('bolt', 10)")
    ana = stage.start(*argv)
    ana.hear("10 in stock")
    take_away(stage, lock)
    bob = stage.start(*argv)
    bob.hear("10 in stock")
    ana.tell("3\n")
    assert ana.end() == 1
    assert "refused: " in ana.text
    assert "nothing was changed" in ana.text
    cal = stage.start(*argv)
    stage.waiting(lock, 1)
    bob.tell("1\n")
    bob.hear("9 left")
    assert bob.end() == 0
    cal.hear("9 in stock")
    cal.tell("10\n")
    assert cal.end() == 1
    assert "not possible: 10 of 9" in cal.text
    assert db.execute("SELECT n FROM stock").fetchone() == (9,)


class TestWithin:
    def test_an_invoice_is_paid_once(self, stage: Stage, shop: Connect) -> None:
        assert stage.run("fenced_within.py", "shop.db", 42) == "nothing to pay\n"
        db = shop()
        db.execute("INSERT INTO invoices (id) VALUES (42)")
        payers = [stage.start("fenced_within.py", "shop.db", 42) for _ in range(3)]
        assert [payer.end() for payer in payers] == [0] * 3
        assert sorted(payer.text for payer in payers) == ["nothing to pay\n", "nothing to pay\n", "paid\n"]
        assert db.execute("SELECT count(*) FROM payments").fetchone() == (1,)

    @pytest.mark.gate
    def test_a_stale_payer_is_refused(self, stage: Stage, shop: Connect) -> None:
        stage.run("fenced_within.py", "shop.db", 42)
        db, name = shop(), "invoice:42"
        db.execute("INSERT INTO invoices (id) VALUES (42)")
        db.execute("BEGIN IMMEDIATE")  # the payer has to wait for it, with the lock in its hand
        payer = stage.start("fenced_within.py", "shop.db", 42)
        stage.taken(name, payer)
        take_away(stage, name)
        with stage.client.lock(name, timeout=60) as hold:
            stage.client.fence(name).admit(hold.token, within=db)
            db.execute("COMMIT")
            assert payer.end() == 1
        assert "refused: " in payer.text
        assert "is stale" in payer.text
        assert db.execute("SELECT paid FROM invoices").fetchone() == (0,)


@pytest.mark.gate
def test_writers_of_a_file_take_turns_and_a_stale_one_is_refused(stage: Stage) -> None:
    path = stage.directory / "settings.txt"
    ana = stage.start("fenced_file.py", path)
    stage.taken(f"file:{path}", ana)
    bob = stage.start("fenced_file.py", path)
    bob.tell("bob\n")
    stage.waiting(f"file:{path}", 1)
    assert not path.exists()
    take_away(stage, f"file:{path}")
    assert bob.end() == 0, bob.text
    ana.tell("ana\n")
    assert ana.end() == 1
    assert "refused: " in ana.text
    assert path.read_text() == "bob\n"


class TestHttp:
    @staticmethod
    def serve(stage: Stage) -> tuple[Program, int]:
        server = stage.start("fenced_http.py", "shop.db")
        return server, int(server.hear(r"http://127.0.0.1:(\d+)")[1])

    @staticmethod
    def ask(port: int, method: str, body: str | None = None, **headers: object) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
            connection.request(method, "/settings", body, named)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def test_a_stale_write_is_refused_also_after_a_restart(self, stage: Stage) -> None:
        server, port = self.serve(stage)
        with stage.client.lock("settings") as hold:
            old = hold.token
        with stage.client.lock("settings") as hold:
            new = hold.token
        assert self.ask(port, "GET")[0] == 404
        assert self.ask(port, "PUT", "x")[0] == 428
        for token in ("", "x", "-1", "1.5", "1" * 40):
            assert self.ask(port, "PUT", "x", Fencing_Token=token)[0] == 428, token
        assert self.ask(port, "PUT", None, Fencing_Token=1, Content_Length=10**9)[0] == 413
        assert self.ask(port, "PUT", "one", Fencing_Token=old) == (204, "")
        assert self.ask(port, "PUT", "two", Fencing_Token=new) == (204, "")
        assert self.ask(port, "PUT", "three", Fencing_Token=new) == (204, ""), "a holder may write more than once"
        server.kill()
        _, port = self.serve(stage)
        status, why = self.ask(port, "PUT", "late", Fencing_Token=old)
        assert status == 409
        assert "later token" in why
        assert self.ask(port, "GET") == (200, "three")


@pytest.mark.gate
def test_without_a_fence_an_update_is_lost_and_with_one_it_is_not(stage: Stage) -> None:
    program, text = stage.directory / "program.py", (EXAMPLES / "stopped_holder.py").read_text(encoding="utf-8")
    assert "LEASE = 1.0" in text
    program.write_text(text.replace("LEASE = 1.0", "LEASE = 5.0"))  # a busy machine must not end it before its time
    said = stage.run(program)
    plain, fenced = said.split("With a fence:")
    assert "ana: writes 1: accepted" in plain
    assert "the number is 1" in plain
    assert "ana: writes 1: refused" in fenced
    assert "ana: begins again" in fenced
    assert "the number is 2" in fenced
    page = (ROOT / "docs" / "concepts" / "fencing.md").read_text(encoding="utf-8")
    assert without_tokens(said) in without_tokens(page), "the page shows what the script says"


def without_tokens(text: str) -> str:
    return re.sub(r"token \.\.\.\d{7}", "token ...", text)
