#!/usr/bin/env bash
# msgspec's `convert` refuses a value that the type of a field names, and that `to_builtins` takes: UNSET.
#
# Guess: a field `int | UnsetType = UNSET` takes UNSET from an object's attribute (`from_attributes=True`) or a dict, as
#   it takes None where the type names None. UNSET means "was not given", so a copy of a structure has it too.
# Seen: msgspec 0.22.0, Python 3.11, Linux x86_64, November 2026. "ValidationError: Expected `int`, got
#   `msgspec.UnsetType` - at `$.port`", for an object and for a dict. The same structure with a number is converted, and
#   through `to_builtins`, which leaves UNSET fields out, all of them are. JSON and MessagePack go both ways, too.
# Matters for: configurations and messages in parts, where UNSET tells "not given" from None: a struct is not
#   convertible into another one with the same fields as long as a field is unset. Go through `to_builtins`, or copy
#   with `structs.asdict` and leave UNSET out.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet msgspec==0.22.0 || exit 2
cat > "$folder/unset.py" <<'PYTHON'
from msgspec import UNSET, Struct, UnsetType, ValidationError, convert, json, to_builtins


class Written(Struct):
    port: int | UnsetType = UNSET
    host: str | None = None


class Checked(Struct):
    port: int | UnsetType = UNSET
    host: str | None = None


def attempt(value, **options):
    try:
        return convert(value, Checked, **options)
    except ValidationError as error:
        return str(error)


refused = attempt(Written(), from_attributes=True), attempt({"port": UNSET, "host": None})
taken = attempt(Written(port=5), from_attributes=True), attempt(to_builtins(Written()))
print("refused:", *refused, sep="\n  ")
print("taken:", *taken, sep="\n  ")
print("JSON:", json.decode(json.encode(Written()), type=Checked))
same = all("got `msgspec.UnsetType`" in str(one) for one in refused) and taken == (Checked(port=5), Checked())
raise SystemExit(0 if same and json.decode(json.encode(Written()), type=Checked) == Checked() else 1)
PYTHON
"$folder/venv/bin/python" "$folder/unset.py"
