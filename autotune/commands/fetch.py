"""``autotune fetch``: copy a sweep's records, report and best setting from the cluster to here.

Runs where the user is; reads from the cluster's dashboard, or from the sweep's ``output_uri``. The
module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse
from pathlib import Path

from autotune.commands.arguments import add_dashboard
from autotune.errors import BadInputError, ExitCode

SUMMARY = "copy a sweep's records, report and best setting from the cluster to here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "sweep", nargs="?", help="the sweep's file, or its id as `autotune submit` printed it"
    )
    add_dashboard(parser)
    parser.add_argument("--out", type=Path, help="folder to fill (default: sweeps/NAME)")
    parser.add_argument(
        "--from",
        dest="uri",
        metavar="URI",
        help="the sweep's copy in storage (output_uri/NAME), for a cluster that is gone",
    )
    parser.add_argument("--no-logs", action="store_true", help="leave verl's logs where they are")


def run(options: argparse.Namespace) -> ExitCode:
    """Fill the folder."""
    from autotune.cluster import SweepJobs, id_of, name_of
    from autotune.fetching import fetch_published, fetch_stored

    if options.uri is not None:
        out = options.out if options.out is not None else Path("sweeps") / Path(options.uri).name
        num_files = fetch_stored(options.uri, out, with_logs=not options.no_logs)
    elif options.sweep is None:
        raise BadInputError("No sweep is named.", "Give its file or id, or --from URI.")
    else:
        sweep = id_of(options.sweep)
        out = options.out if options.out is not None else Path("sweeps") / name_of(sweep)
        published = SweepJobs(options.address).published(sweep)
        num_files = fetch_published(published, out, with_logs=not options.no_logs)
    if not num_files:
        raise BadInputError("The sweep's folder holds no file yet.")
    print(f"{num_files} files in {out}")
    print(f"  autotune report {out}")
    return ExitCode.DONE
