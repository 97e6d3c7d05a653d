"""Check scripts/fleets/jobset.yaml against the schema of JobSet at one commit, and its pods against Kubernetes' own.

    git clone https://github.com/kubernetes-sigs/jobset /tmp/jobset
    pip install kubernetes-validate jsonschema pyyaml            # in an environment of its own
    python scripts/fleets/check_jobset.py /tmp/jobset

Keys that a schema does not know are errors, as for `kubectl --validate=strict`. Rules that JobSet's webhook and CEL
expressions check are not evaluated: these need a cluster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

MANIFEST = Path(__file__).with_name("jobset.yaml")
COMMIT = "08dfbdfd682714a9ab929633eca8dc95315187e7"
"""Of kubernetes-sigs/jobset, August 2026; the schema of v1alpha2."""
CRD = "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"
KUBERNETES = "1.35"


def strict(schema: Any) -> Any:
    """Return a JSON schema that means what this schema of a CRD means, and refuses unknown keys."""
    if isinstance(schema, list):
        return list(map(strict, schema))
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="clone of kubernetes-sigs/jobset, or its git folder")
    parser.add_argument("--commit", default=COMMIT)
    options = parser.parse_args()
    import kubernetes_validate

    read = ["git", "-C", str(options.clone), "show", f"{options.commit}:{CRD}"]
    crd = yaml.safe_load(subprocess.run(read, check=True, capture_output=True, text=True).stdout)
    (version,) = crd["spec"]["versions"]
    claim, jobset = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own, which a CRD leaves open
    found = [f"{error.json_path}: {error.message}" for error in jsonschema.Draft7Validator(schema).iter_errors(jobset)]
    jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}
        for job in jobset["spec"]["replicatedJobs"]
    ]
    for document in (claim, *jobs):
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as exc:
            found.append(f"{document['kind']} {document['metadata']['name']}: {exc.message}")
    for line in found:
        print(line)
    print(f"{len(jobs)} jobs, JobSet {version['name']} at {options.commit[:12]}, Kubernetes {KUBERNETES}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
