"""Arguments that several commands share.

Runs in the driver, at every start of the command line: imports nothing heavy.
"""

import argparse


def add_sweep_file(parser: argparse.ArgumentParser) -> None:
    """Add the sweep file and the settings that win over it."""
    parser.add_argument("file", help="the sweep file (YAML)")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings that win over the file's"
    )


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add the Ray cluster's address."""
    parser.add_argument("--address", help="Ray cluster to use; without it a local one is started")


def add_sweep_folder(parser: argparse.ArgumentParser) -> None:
    """Add the folder of a sweep's records."""
    parser.add_argument("folder", help="the sweep's folder, e.g. sweeps/quickstart_cpu")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the choice of an answer for machines."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object of a versioned schema"
    )


def add_dashboard(parser: argparse.ArgumentParser) -> None:
    """Add the address of the cluster's dashboard."""
    parser.add_argument(
        "--address",
        default="http://127.0.0.1:8265",
        help="dashboard of the Ray cluster (default: %(default)s)",
    )


def add_submitted(parser: argparse.ArgumentParser) -> None:
    """Add a submitted sweep, by its file or by its id."""
    parser.add_argument(
        "sweep", help="the sweep's file, or its id as `autotune submit` printed it"
    )
    add_dashboard(parser)


def add_python(parser: argparse.ArgumentParser) -> None:
    """Add the interpreter that runs on the cluster."""
    parser.add_argument(
        "--python",
        default="python",
        help="interpreter on the cluster's nodes that has verl (default: %(default)s)",
    )
