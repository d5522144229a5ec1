"""What is kept in memory by digest: the last used, within a bound."""

from __future__ import annotations

import threading

from relaxc.service.jobs.objects.recent import Recent


def test_the_least_recently_used_goes_first() -> None:
    kept = Recent(8)
    for name in "abcd":
        kept.put(name, name.encode() * 2)
    assert kept.get("a") == b"aa"
    kept.put("e", b"ee")
    assert [name for name in "abcde" if kept.get(name)] == ["a", "c", "d", "e"]
    kept.put("e", b"ee")
    assert [name for name in "abcde" if kept.get(name)] == ["a", "c", "d", "e"]


def test_what_is_large_pushes_nothing_out() -> None:
    kept = Recent(8)
    kept.put("a", b"aa")
    kept.put("b", b"bbb")
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (b"aa", None, None)


def test_threads_do_not_lose_count() -> None:
    kept = Recent(64)

    def work(start: int) -> None:
        for i in range(2000):
            kept.put(str((start + i) % 50), bytes(1 + i % 16))
            kept.get(str(i % 50))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(kept.get(str(i)) or b"") for i in range(50)) <= 64
