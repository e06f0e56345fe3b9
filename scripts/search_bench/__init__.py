"""What ``scripts/bench_search.py`` runs: tuners, landscapes to compare them on, figures."""
