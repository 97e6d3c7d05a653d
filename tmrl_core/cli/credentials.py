"""`python -m tmrl_core --credentials create | bundle | install | show | revoke | renew | rotate-token | key`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tmrl_core.cli.main import common_options, load_config, of_rooms, set_up_logging
from tmrl_core.config import Config
from tmrl_core.config.sections import is_loopback
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security import credentials, renewal
from tmrl_core.networking.security.certificates import MAX_WEIGHT
from tmrl_core.networking.security.revocations import REVOKED_FILE, SIGNED_FILE
from tmrl_core.networking.security.tls_contexts import CERTIFIED_ROLES, CLIENT_ROLES
from tmrl_core.roles.command import CredentialsCommand

MOST_DAYS = 36_500
EPILOG = """\
On the machine that hosts the Server:
  python -m tmrl_core --credentials create --host server.example.org
  python -m tmrl_core --credentials bundle trainer --name hpc
  python -m tmrl_core --credentials bundle worker --name robot7
  python -m tmrl_core --credentials bundle operator --name anna     (watches a run and pauses it from anywhere)
Copy each bundle to its machine (it is secret: anyone who has it can act as that worker or trainer), and run there:
  python -m tmrl_core --credentials install robot7.worker.bundle
If robot7 is stolen (a running Server applies it at once):
  python -m tmrl_core --credentials revoke robot7
"""


def days(text: str) -> float:
    """Return the validity of a certificate.

    Raises:
        ArgumentTypeError: the text is not a number of days in range.
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= MOST_DAYS:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, allowed: a number of days, more than 0 and at most {MOST_DAYS}"
        )
    return found


def whole_weight(text: str) -> int:
    """Return the weight of a role that serves many clients.

    Raises:
        ArgumentTypeError: the text is not a weight in range.
    """
    if text.isdecimal() and 1 <= int(text) <= MAX_WEIGHT:
        return int(text)
    raise argparse.ArgumentTypeError(f"found {text!r}, allowed: a whole number from 1 to {MAX_WEIGHT}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments after `--credentials`."""
    common = common_options()
    added: dict[str, CredentialsCommand] = of_rooms("credentials")
    weighted = weighted_roles()
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --credentials",
        description="Manage the certificates and tokens that identify the roles.",
        epilog="".join([EPILOG, *(command.epilog for command in added.values())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

    create = commands.add_parser(
        "create",
        parents=[common],
        help="create a CA, a server certificate and a token for each role; again: only a new server certificate",
    )
    create.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="name or address of the Server; may be repeated; loopback names and those of the existing certificate are "
        "kept (default: server.host)",
    )
    create.add_argument("--days", type=days, default=credentials.DAYS, help="validity (default: %(default)s)")
    create.add_argument(
        "--overwrite",
        action="store_true",
        help="create a new CA and new tokens; all bundles of the old CA stop working",
    )

    bundle = commands.add_parser("bundle", parents=[common], help="write one file with all that another machine needs")
    bundle.add_argument("for_role", choices=[*CERTIFIED_ROLES, "server", *weighted], metavar="ROLE")
    bundle.add_argument("--name", default="", help="name of the holder, written into its certificate")
    bundle.add_argument(
        "--weight",
        type=whole_weight,
        default=1,
        metavar="N",
        help=f"share of a role with many clients ({', '.join(weighted) or 'none here'}) in the Server's throughput, as "
        f"a number of workers, 1 to {MAX_WEIGHT} (default: 1)",
    )
    bundle.add_argument("--out", metavar="FILE", help="file or folder (default: NAME.ROLE.bundle here)")
    bundle.add_argument("--days", type=days, default=credentials.DAYS, help="validity (default: %(default)s)")

    install = commands.add_parser("install", parents=[common], help="unpack a bundle on the machine it is for")
    install.add_argument("file", metavar="FILE")
    install.add_argument("--overwrite", action="store_true", help="move an installed bundle of another CA aside first")

    commands.add_parser("show", parents=[common], help="print fingerprints, expiry and revocations; no secrets")

    revoke = commands.add_parser(
        "revoke",
        parents=[common],
        help="revoke the certificates of one machine, or the secret of this name; running roles apply it",
    )
    revoke.add_argument(
        "name", metavar="NAME", help="name in the certificates; the bundle or certificate file; or the id of a key"
    )
    revoke.add_argument("--of-role", choices=CERTIFIED_ROLES, help="only certificates of this role (default: any)")

    renew = commands.add_parser(
        "renew", parents=[common], help="create a new server certificate, or new bundles for NAMEs; the CA stays"
    )
    renew.add_argument("names", nargs="*", metavar="NAME", help="name in the bundle (default: the server certificate)")
    renew.add_argument("--all", action="store_true", help="the server certificate and the bundles of all names")
    renew.add_argument("--out", metavar="FOLDER", help="folder for the bundles (default: here)")
    renew.add_argument("--days", type=days, default=credentials.DAYS, help="validity (default: %(default)s)")

    rotate = commands.add_parser(
        "rotate-token", parents=[common], help="create a new token for a role; the old one is no longer accepted"
    )
    rotate.add_argument("for_role", choices=CLIENT_ROLES, metavar="ROLE")

    for name, command in added.items():
        command.add_arguments(commands.add_parser(name, parents=[common], help=command.help))
    return made


def weighted_roles() -> list[str]:
    """Return the names of the roles of rooms that the Server takes for a worker with a weight."""
    return [name for name, role in of_rooms("roles").items() if role.weighted]


def run_credentials(arguments: Sequence[str]) -> int:
    """Run a command line with `--credentials`. Options may precede it.

    Raises:
        ConfigError: the configuration is invalid.
        CredentialsError: credentials are missing, damaged, or of another CA.
    """
    at = list(arguments).index("--credentials")
    rest = list(arguments[at + 1 :])
    # argparse accepts the options of a sub-command only after it.
    options = parser().parse_args(rest[:1] + list(arguments[:at]) + rest[1:])
    set_up_logging(options.log_level)
    config = load_config(options)
    folder = credentials.find(config.network.credentials_dir)
    added: dict[str, CredentialsCommand] = of_rooms("credentials")
    if options.command in added:
        return added[options.command].run(config, options, folder)
    if options.command == "create":
        return create(options, config, folder)
    command = {
        "bundle": bundle,
        "install": install,
        "show": show,
        "revoke": revoke,
        "renew": renew,
        "rotate-token": rotate_token,
    }[options.command]
    return command(options, folder)


def create(options: argparse.Namespace, config: Config, folder: Path) -> int:
    """Make credentials."""
    name = config.network.hostname or config.server.host
    made = credentials.create(
        folder,
        options.host,
        days=options.days,
        overwrite=options.overwrite,
        default_host="" if options.host or is_loopback(name) else name,
    )
    print(f"{made.directory}: " + ("a new CA, tokens" if made.new_authority else "the CA and the tokens as they were"))
    print(f"the server's certificate is for {', '.join(made.hosts)}")
    if all(map(is_loopback, made.hosts)):
        print("for other machines, name the Server: python -m tmrl_core --credentials create --host NAME")
    else:
        print("next, for each other machine: python -m tmrl_core --credentials bundle worker --name NAME (or trainer)")
    return 0


def bundle(options: argparse.Namespace, folder: Path) -> int:
    """Make a bundle."""
    role = options.for_role
    weighted = weighted_roles()
    if role in weighted:
        role = "worker"  # which it is to the Server
    elif options.weight != 1:
        raise CredentialsError(
            f"--weight {options.weight}: a {role}'s bundle has no weight; allowed with "
            f"{' or '.join(weighted) or 'no role here'}. Leave it out, or name such a role."
        )
    path = credentials.bundle(folder, role, options.name, options.out, days=options.days, weight=options.weight)
    print(f"{path}: copy it to that machine and run there: python -m tmrl_core --credentials install {path.name}")
    print("It is secret: its holder can act as that " + options.for_role + ".", file=sys.stderr)
    return 0


def install(options: argparse.Namespace, folder: Path) -> int:
    """Unpack a bundle."""
    files = credentials.install(options.file, folder, overwrite=options.overwrite)
    for path in files:
        print(path)
    print(f"{options.file} is no longer needed on this machine; delete it.", file=sys.stderr)
    return 0


def show(options: argparse.Namespace, folder: Path) -> int:
    """Print the existing credentials."""
    records = [record for command in of_rooms("credentials").values() for record in command.show(folder)]
    if not records or folder.is_file() or (folder / "ca.pem").exists():
        records = credentials.show(folder) + records
    print(folder)
    for record in records:
        about = [record.what, Path(record.file).name, record.role, record.subject, " ".join(record.names)]
        print("  " + ", ".join(part for part in about if part))
        if record.what == "revoked" and record.not_before is not None:
            print(f"    revoked {record.not_before:%Y-%m-%d %H:%M} UTC")
        if record.serial and not record.fingerprint:
            print(f"    serial number {record.serial}")
        if record.fingerprint:
            print(f"    SHA-256 {record.fingerprint}")
        if record.expires is not None and record.days_left is not None:
            left = f"{record.days_left} days left" if record.days_left >= 0 else "EXPIRED"
            print(f"    expires {record.expires:%Y-%m-%d %H:%M} UTC, {left}")
    return 0


def revoke(options: argparse.Namespace, folder: Path) -> int:
    """Revoke certificates or the secret of a room."""
    if options.of_role is None:
        for command in of_rooms("credentials").values():
            if (ended := command.revoke(folder, options.name)) is not None:
                print(f"revoked: {ended}")
                return 0
    taken = renewal.revoke(folder, options.name, options.of_role)
    for one in taken:
        print(f"revoked: the {one.role} certificate of {one.name}, serial number {one.serial}")
    if not taken:
        print(f"nothing changed: all certificates of {options.name} were revoked before")
    print(
        f"A running Server that reads {folder} applies this within seconds, and sends {SIGNED_FILE} to the trainer and "
        f"the workers. If the Server is on another machine, copy {REVOKED_FILE} and {SIGNED_FILE} from {folder} to its "
        f"credentials folder. If the Server may have been taken over, also copy {SIGNED_FILE} to the credentials "
        "folders of the trainer and the workers."
    )
    print("Bundles hold no token. If that machine also had a token, run: --credentials rotate-token ROLE")
    return 0


def renew(options: argparse.Namespace, folder: Path) -> int:
    """Renew expiring certificates."""
    files: list[Path] = []
    if options.all or not options.names:
        files += renewal.renew(folder, days=options.days)
    valid, expired = renewal.holders(folder) if options.all else ([], [])
    names = list(dict.fromkeys([*options.names, *valid]))
    if names:
        files += renewal.renew(folder, names, options.out, days=options.days)
    for path in files:
        print(path)
    if names:
        print("Copy each bundle to its machine and install it there; it is used when that machine next connects.")
    if left_out := [name for name in expired if name not in names]:
        print(
            f"Left out, because they have expired: {', '.join(left_out)}. If they are in use, name them after `renew`."
        )
    if options.all or not options.names:
        print("A running Server takes its new certificate for the connections to come.")
    return 0


def rotate_token(options: argparse.Namespace, folder: Path) -> int:
    """Replace a token."""
    path = renewal.rotate_token(folder, options.for_role)
    print(f"{path}: copy it to each machine that has no certificate of its own (TMRL_CORE_TOKEN_FILE, or its folder)")
    print(
        f"A running Server that reads {folder} applies this within seconds. A Server on another machine needs a new "
        "bundle: --credentials bundle server"
    )
    return 0
