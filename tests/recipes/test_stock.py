"""docs/recipes/stock.md: a stock of 2,000 in 100 segments is sold to the last piece, and not one more."""

from __future__ import annotations

import sqlite3

import pytest

import dibs
from recipes.programs import Connect, Program, Stage

pytestmark = pytest.mark.gate


def test_everything_is_sold_and_not_one_piece_more(stage: Stage, shop: Connect) -> None:
    amount = 200
    stage.run("stock.py", "shop.db", "fill", amount)
    sellers, orders = 4, amount // 4 + 25
    started = [stage.start("stock.py", "shop.db", "sell") for _ in range(sellers)]
    for number, seller in enumerate(started):
        seller.tell("".join(f"{number}-{order} user-{order}\n" for order in range(orders)))
    ends = [seller.end(within=150) for seller in started]
    said = "".join(seller.text for seller in started)
    assert ends == [0] * sellers, said[-2000:]
    assert (said.count(" sold\n"), said.count(" sold-out\n")) == (amount, 100)
    assert stage.run("stock.py", "shop.db", "total") == "0\n"
    db = shop()
    assert db.execute("SELECT count(*), min(n), max(n) FROM stock").fetchone() == (100, 0, 0)
    assert db.execute("SELECT count(*) FROM orders").fetchone() == (amount,)


def test_orders_of_other_segments_do_not_wait_and_the_total_does(stage: Stage, shop: Connect) -> None:
    stage.run("stock.py", "shop.db", "fill", 2000)
    assert shop().execute("SELECT DISTINCT n FROM stock").fetchall() == [(20,)]
    stock = stage.client.striped("stock", 100)
    mine, other = "user-1", "user-2"
    assert stock.at(mine).name != stock.at(other).name
    with stock.at(mine) as hold:
        seller = stage.start("stock.py", "shop.db", "sell")
        seller.tell(f"a {other}\na {other}\n")
        assert seller.end() == 0
        assert seller.text == "a sold\na sold\n", "an order that comes again takes nothing"
        counting = stage.start("stock.py", "shop.db", "total")
        stage.waiting(hold.name, 1)
        assert counting.text == ""
    assert counting.end() == 0
    assert counting.text == "1999\n"


def selling(stage: Stage, db: sqlite3.Connection) -> tuple[Program, dibs.Lock]:
    """A seller that has its lock and waits for the database."""
    db.execute("BEGIN IMMEDIATE")
    seller = stage.start("stock.py", "shop.db", "sell")
    seller.tell("a user-1\n")
    stripe = stage.client.striped("stock", 100).at("user-1")
    stage.taken(stripe.name, seller)
    return seller, stripe


def test_a_killed_seller_leaves_nothing_half_done_and_a_stale_one_is_refused(stage: Stage, shop: Connect) -> None:
    stage.run("stock.py", "shop.db", "fill", 100)
    db = shop()
    killed, _ = selling(stage, db)
    killed.kill()
    db.execute("ROLLBACK")
    stale, stripe = selling(stage, db)
    (holder,) = stage.client.inspect(stripe.name).holders
    stage.client.break_(stripe.name, token=holder.token)
    with stripe as hold:  # the next holder writes first
        db.execute("UPDATE stock SET fence = ? WHERE segment = ?", (hold.token, hold.name))
        db.execute("COMMIT")
        assert stale.end() == 1
    assert dibs.StaleToken.__name__ in stale.text
    assert stage.run("stock.py", "shop.db", "total") == "100\n"
    assert db.execute("SELECT count(*) FROM orders").fetchone() == (0,)
