"""What a sweep keeps about its runs."""

from pathlib import Path

import yaml

from autotune.sweep import versions, with_this_run


def test_the_versions_of_every_run_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text(with_this_run(path))
    path.write_text(with_this_run(path))
    runs = yaml.safe_load(path.read_text())
    assert [run["versions"] for run in runs] == [dict(versions())] * 2
