"""What is said of the machine and the source that ran a sweep."""

import subprocess
from pathlib import Path

from autotune.versions import nvidia_driver, source_commit, versions


def test_the_packages_that_ran_are_named() -> None:
    found = versions()
    assert found["verl"] == "0.9.1" or found["verl"].startswith("0.9")
    assert {"python", "platform", "torch", "ray", "verl-autotune"} <= found.keys()


def test_the_driver_is_read_from_its_own_file() -> None:
    text = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    assert nvidia_driver(text) == "580.65.06"
    assert nvidia_driver("something else") is None


def test_a_checkout_has_a_commit_and_says_when_it_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "--quiet", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert source_commit(tmp_path) == commit
    inside = tmp_path / "site-packages" / "autotune"
    inside.mkdir(parents=True)
    (inside / "module.py").write_text("1")
    assert source_commit(inside) is None
    (tmp_path / "file").write_text("2")
    assert source_commit(tmp_path) == f"{commit}-dirty"


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert source_commit(tmp_path) is None
