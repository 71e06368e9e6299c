"""What is in an image, as SPDX 2.3 in JSON (https://spdx.github.io/spdx-spec/v2.3/).

    python3 -m hack.image_sbom ARCHIVE NAME    ARCHIVE as `docker save` writes it; NAME is the image's

It reads what the image itself says: dpkg's list of packages, the metadata of Python's, the payload's version
and digests, the base and the snapshot in its labels. The same image gives the same document. Standard library
only, as image_files.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from hack.image_files import lines, read_config, read_contents, read_image

_DPKG, _RELEASE = "var/lib/dpkg/status", "usr/lib/os-release"
_VERSION, _SUMS = "payload/VERSION", "payload/SHA256SUMS"
_BINARY = "opt/intel/bin/cri-resmgr"
_UNKNOWN = "NOASSERTION"
_BASE, _DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"
_SNAPSHOT = "cri-resmgr-installer.snapshot"

Package = dict[str, Any]


def build_sbom(archive: Path, name: str) -> dict[str, Any]:
    """The document of the image in `archive`."""
    there = read_image(archive)
    contents = read_contents(archive, lambda path: _is_wanted(path) and path in there)
    listing = hashlib.sha256("\n".join(lines(there)).encode()).hexdigest()
    config = read_config(archive)
    labels = config["config"].get("Labels") or {}
    image = _package("image", name, listing[:12]) | {"primaryPackagePurpose": "CONTAINER"}
    if snapshot := labels.get(_SNAPSHOT):
        image["sourceInfo"] = f"packages that are not the base's: as Debian had them at {snapshot}"
    base = [_base(labels)] if labels.get(_BASE) else []
    packages = [*_of_the_distribution(contents), *_of_python(contents), *_of_the_payload(contents)]
    packages.sort(key=lambda each: str(each["SPDXID"]))
    contains = [(image["SPDXID"], "CONTAINS", each["SPDXID"]) for each in packages]
    descends = [(image["SPDXID"], "DESCENDANT_OF", each["SPDXID"]) for each in base]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", image["SPDXID"]), *descends, *contains]
    created = str(config.get("created", ""))[:19]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{urllib.parse.quote(name, safe='')}-{listing}",
        "creationInfo": {"created": f"{created}Z", "creators": ["Tool: hack/image of cri-resmgr-installer"]},
        "packages": [image, *base, *packages],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
    }


def _is_wanted(path: str) -> bool:
    return path in (_DPKG, _RELEASE, _VERSION, _SUMS) or path.endswith(".dist-info/METADATA")


def _base(labels: Mapping[str, str]) -> Package:
    """The image that ours is built on."""
    path, last = labels[_BASE].rpartition("/")[::2]
    name, _, tag = last.partition(":")
    digest = labels.get(_DIGEST, "")
    query = {"repository_url": f"{path}/{name}"} | ({"tag": tag} if tag else {})
    place = f"pkg:oci/{name}@{urllib.parse.quote(digest, safe='')}?{urllib.parse.urlencode(query)}"
    package = _package("base", labels[_BASE], digest or _UNKNOWN, place if digest else "")
    return package | {"primaryPackagePurpose": "CONTAINER"}


def _of_the_distribution(contents: Mapping[str, bytes]) -> Iterator[Package]:
    release = dict(re.findall(r'(?m)^(\w+)="?([^"\n]*)', contents.get(_RELEASE, b"").decode()))
    distribution = release.get("ID", "debian")
    for stanza in contents.get(_DPKG, b"").decode("utf-8", "replace").split("\n\n"):
        fields = HeaderParser().parsestr(stanza.lstrip("\n"))
        name, version = fields["Package"], fields["Version"]
        if name and version and fields["Status"] == "install ok installed":
            query = f"arch={fields['Architecture']}&distro={distribution}-{release.get('VERSION_ID', '')}"
            place = f"pkg:deb/{distribution}/{name}@{urllib.parse.quote(version, safe='')}?{query}"
            yield _package(f"deb-{name}", name, version, place) | {
                "supplier": f"Organization: {release.get('NAME', distribution)}"
            }


def _of_python(contents: Mapping[str, bytes]) -> Iterator[Package]:
    """The program itself is one of them."""
    for path, content in contents.items():
        if not path.endswith("/METADATA") or not path.startswith("opt/"):
            continue  # those of the distribution are in dpkg's list
        fields = HeaderParser().parsestr(content.decode("utf-8", "replace"))
        name, version = fields["Name"], fields["Version"]
        ours = name == "cri-resmgr-installer"
        place = "" if ours else f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        declared = "Apache-2.0" if ours else fields["License-Expression"] or _UNKNOWN
        yield _package(f"pypi-{name}", name, version, place) | {"licenseDeclared": declared}


def _of_the_payload(contents: Mapping[str, bytes]) -> Iterator[Package]:
    if _SUMS not in contents:
        return  # the image of the extension
    version = contents.get(_VERSION, b"").decode().strip() or _UNKNOWN
    sums = {
        path: digest
        for digest, path in (line.split("  ", 1) for line in contents[_SUMS].decode().splitlines())
    }
    digest = {"algorithm": "SHA256", "checksumValue": sums[_BINARY]}
    place = f"pkg:github/intel/cri-resource-manager@{version}"
    yield _package("payload", "cri-resource-manager", version, place) | {
        "checksums": [digest],
        "packageFileName": f"/payload/{_BINARY}",
    }


def _package(identifier: str, name: str, version: str, place: str = "") -> Package:
    """`place` is its package URL (https://github.com/package-url/purl-spec), empty if it has none."""
    reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": place}
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", identifier),
        "name": name,
        "versionInfo": version,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "externalRefs": [reference] if place else [],
    }


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(json.dumps(build_sbom(Path(argv[0]), argv[1]), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
