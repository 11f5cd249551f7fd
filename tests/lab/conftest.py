"""The lab's tests of itself run when the lab changes (lab.checked), and not in every run: pytest takes them by name."""

collect_ignore_glob = ["test_*.py"]
