"""`python -m tmrl_core --credentials create | bundle | install | show`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tmrl_core.cli import common_options, load_config, set_up_logging
from tmrl_core.networking import credentials

EPILOG = """\
On the machine that hosts the Server:
  python -m tmrl_core --credentials create --host server.example.org
  python -m tmrl_core --credentials bundle trainer --name hpc
  python -m tmrl_core --credentials bundle worker --name robot7
Copy each bundle to its machine (it is secret: anyone who has it can be that worker or trainer), and there:
  python -m tmrl_core --credentials install robot7.worker.bundle
"""


def parser() -> argparse.ArgumentParser:
    """The grammar of what follows `--credentials`."""
    common = common_options()
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --credentials",
        description="Certificates and tokens with which the roles prove who they are.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

    create = commands.add_parser(
        "create", parents=[common], help="make a CA, a server certificate and a token per role; or renew the second"
    )
    create.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="name or address of the Server, may be repeated; this machine's loopback is always added",
    )
    create.add_argument("--days", type=float, default=credentials.DAYS, help="validity (default: %(default)s)")
    create.add_argument(
        "--overwrite", action="store_true", help="a new CA and new tokens; all bundles of the old one stop working"
    )

    bundle = commands.add_parser("bundle", parents=[common], help="make one file with what another machine needs")
    bundle.add_argument("for_role", choices=["worker", "trainer", "server"], metavar="ROLE")
    bundle.add_argument("--name", default="", help="of that worker or trainer: its certificate's")
    bundle.add_argument("--out", metavar="FILE", help="file or folder (default: NAME.ROLE.bundle here)")
    bundle.add_argument("--days", type=float, default=credentials.DAYS, help="validity (default: %(default)s)")

    install = commands.add_parser("install", parents=[common], help="unpack a bundle on the machine it is for")
    install.add_argument("file", metavar="FILE")
    install.add_argument("--overwrite", action="store_true", help="also over credentials of another CA")

    commands.add_parser("show", parents=[common], help="fingerprints and expiry; no secret")
    return made


def run_credentials(arguments: Sequence[str]) -> int:
    """Do what the command line with `--credentials` in it asks for; options may stand before it too.

    Raises:
        ConfigError: the configuration is wrong.
        CredentialsError: credentials are missing, broken, or of another CA.
    """
    at = list(arguments).index("--credentials")
    rest = list(arguments[at + 1 :])
    # argparse takes the options of a sub-command after it only.
    options = parser().parse_args(rest[:1] + list(arguments[:at]) + rest[1:])
    set_up_logging(options.log_level)
    folder = credentials.find(load_config(options).network.credentials_dir)
    return {"create": create, "bundle": bundle, "install": install, "show": show}[options.command](options, folder)


def create(options: argparse.Namespace, folder: Path) -> int:
    """Make credentials."""
    made = credentials.create(folder, options.host, days=options.days, overwrite=options.overwrite)
    print(f"{made.directory}: " + ("a new CA, tokens" if made.new_authority else "the CA and the tokens as they were"))
    print(f"the server's certificate is for {', '.join(made.hosts)}")
    if not options.host:
        print("for other machines, name the Server: python -m tmrl_core --credentials create --host NAME")
    else:
        print("next, for each other machine: python -m tmrl_core --credentials bundle worker --name NAME (or trainer)")
    return 0


def bundle(options: argparse.Namespace, folder: Path) -> int:
    """Make a bundle."""
    path = credentials.bundle(folder, options.for_role, options.name, options.out, days=options.days)
    print(f"{path}: copy it to that machine and run there: python -m tmrl_core --credentials install {path.name}")
    print("It is secret: whoever has it can act as that " + options.for_role + ".", file=sys.stderr)
    return 0


def install(options: argparse.Namespace, folder: Path) -> int:
    """Unpack a bundle."""
    files = credentials.install(options.file, folder, overwrite=options.overwrite)
    for path in files:
        print(path)
    print(f"{options.file} is no longer needed on this machine; delete it.", file=sys.stderr)
    return 0


def show(options: argparse.Namespace, folder: Path) -> int:
    """Say what there is."""
    records = credentials.show(folder)
    print(folder)
    for record in records:
        about = [record.what, Path(record.file).name, record.role, record.subject, " ".join(record.names)]
        print("  " + ", ".join(part for part in about if part))
        if record.fingerprint:
            print(f"    SHA-256 {record.fingerprint}")
        if record.expires is not None and record.days_left is not None:
            left = f"{record.days_left} days left" if record.days_left >= 0 else "EXPIRED"
            print(f"    expires {record.expires:%Y-%m-%d %H:%M} UTC, {left}")
    return 0
