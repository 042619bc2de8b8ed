"""What text must not go to the Hub: secrets, paths of somebody's machine, scripts. One table of patterns.

The patterns have no word boundary in front where a secret may be glued to other letters, and each text is
read three times: as it is, with its escapes undone (JSON, HTML, URL, Markdown), and with escaped line breaks
taken for spaces. Libraries such as detect-secrets know neither the Hub's tokens nor most of these forms.
"""

from __future__ import annotations

import html
import re
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

SECRETS = {
    "a Hugging Face token": r"(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY|PuTTY-User-Key-File-",
    "an AWS key": r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}",
    "a GitHub token": r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,}",
    "a GitLab token": r"glpat-[\w-]{20,}",
    "a Google key": r"AIza[\w-]{35}|ya29\.[\w-]{20,}",
    "an API key": r"""(?x) sk-(?:[a-z0-9]+-){0,3}(?=\w*\d)(?=\w*[A-Za-z])\w{20,} | [sr]k_live_[A-Za-z0-9]{20,}
        | r8_[A-Za-z0-9]{37} | wandb\s+login\s+(?:--\S+\s+)*[0-9a-f]{40} | AccountKey=[\w+/]{40,}
        | "key"\s*:\s*"[0-9a-f]{32}\"""",
    "a package index token": r"npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{30,}",
    "a Slack token": r"xox[abeoprs]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/\w+",
    "a JSON web token": r"eyJ[\w-]{10,300}\.eyJ[\w-]{10,300}\.[\w-]{10,}",
    "a bearer token": r"""(?ix) bearer\s+(?=\S*\d)[\w.~+/=-]{16,}
        | authorization["']? \s* [:=] \s* ["']?\w+\s+[\w.~+/=-]{8,}""",
    "a password in an address": r"""(?x) [a-z][a-z0-9+.-]{1,30}://[^/\s:@"'<>]+:[^/\s:@"'<>]+@
        | machine\s+\S+\s+login\s+\S+\s+password\s+\S+""",
    # NAME="value", and NAME=value as in a shell: a name in capitals whose value has letters and digits.
    "a key or password": r"""(?ix)
        (?:api_?key|secret_?key|access_?key|auth_?token|access_?token|client_?secret|passw(?:or)?d|passphrase)
        ["']? \s* (?: [:=] \s* ["'][^"'\s]{6,}["'] | = \s* (?!\w*[.(\[])[^\s"'<>(){}\[\]$*,;]{6,}
            | : \s* (?=[\w+/=-]*\d) (?=[\w+/=-]*[A-Za-z]) [\w+/=-]{8,} )
        | (?-i: [A-Z_] (?:TOKEN|SECRET|PASSWORD|KEY) )
        \s* = \s* ["']? (?=[A-Za-z_+/=.-]*\d) (?=[\d_+/=.-]*[A-Za-z]) [\w+/=.-]{12,}""",
}
_ROOTS = """home root Users tmp var data datasets mnt media scratch work workspace opt srv nfs gpfs lustre fsx
    Volumes private content kaggle gscratch dbfs storage cluster""".split()
PATHS = "|".join(
    (
        rf"(?<![\w./-])/(?:{'|'.join(_ROOTS)})/[\w.-]+",
        r"(?<![\w~/.])(?:~|\$HOME|\$\{HOME\})/[\w.-]+",
        r"(?<![\w\\])\\\\{1,3}[A-Za-z][\w.-]+\\{1,2}[A-Za-z][\w.$-]+\\{1,2}\w",
        r"(?<![A-Za-z])file://+[\w.~%-]+",
        r"(?<![A-Za-z])[A-Za-z]:[\\/]+(?:Users|Documents|Windows|Program|home|data|tmp|temp|work|projects?)\b",
        r"(?<![A-Za-z])[A-Za-z]:\\{2,}\w[\w .-]*\\{2,}",
    )
)
SCRIPTS = r"""(?ix)
    < (?:\w+:)? (?:script|iframe|object|embed|foreignObject|meta|link|base|form)\b | <!ENTITY
    | <\?xml-stylesheet | @import\b | (?:j\s*a\s*v\s*a|v\s*b)\s*s\s*c\s*r\s*i\s*p\s*t\s*:
    | data:text/html | href\s*=\s*["']\s*data:(?!image/(?:png|jpeg))
    | <[a-z][^<>]*[\s/]on(?:load|error|click|focus|blur|begin|end|repeat|toggle|wheel|scroll|input|change
      |submit|mouse\w+|pointer\w+|key\w+|touch\w+|animation\w+|transition\w+)\s*="""
_MAX_PNG_TEXT = 1 << 20

_SECRETS = {what: re.compile(pattern) for what, pattern in SECRETS.items()}
_PATHS, _SCRIPTS = re.compile(PATHS), re.compile(SCRIPTS)


def scan(name: str, text: str, *, paths: bool = True) -> list[str]:
    """Return every reason, one sentence each, why a file with this text may not travel.

    Args:
        name: of the file; scripts are looked for in Markdown and SVG alone.
        text: its content.
        paths: look for paths, too.
    """
    readings = set(_readings(text))
    problems = [
        f"{name}: contains {what}"
        for what, pattern in _SECRETS.items()
        if any(pattern.search(reading) for reading in readings)
    ]
    if paths and (found := next(filter(None, map(_PATHS.search, sorted(readings))), None)):
        problems.append(f"{name}: names a folder of somebody's machine ({found[0]}...)")
    if name.endswith((".md", ".svg")) and any(_SCRIPTS.search(reading) for reading in readings):
        problems.append(f"{name}: contains a script, or markup that can run one")
    return problems


def _readings(text: str) -> Iterator[str]:
    yield text
    plain = html.unescape(unquote(text))
    plain = re.sub(r"\\(?:u00|x)([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), plain)
    yield re.sub(r"\\(?=[\W_])", "", plain)
    yield re.sub(r"\\+[nrt]", " ", plain)


def png_text(content: bytes) -> str:
    """Return the texts in a PNG image, or raise ValueError when it is no complete image."""
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("not a PNG image")
    texts, place, kind = [], 8, b""
    while place < len(content) and kind != b"IEND":
        size, kind = int.from_bytes(content[place : place + 4], "big"), content[place + 4 : place + 8]
        data, place = content[place + 8 : place + 8 + size], place + 12 + size
        if kind not in (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"iCCP"):
            texts += [data, *_inflated(data)]
    if kind != b"IEND" or place != len(content):
        raise ValueError("cut off, or something follows the image")
    return b"\n".join(texts).decode("utf-8", "replace")


def _inflated(data: bytes) -> Iterator[bytes]:
    """Give what is compressed in a chunk behind one of its zero bytes (zTXt, iTXt)."""
    for start in [match.end() for match in re.finditer(b"\0", data)][:6]:
        try:
            yield zlib.decompressobj().decompress(data[start:], _MAX_PNG_TEXT)
        except zlib.error:
            continue


def strings_in(value: Any) -> str:
    """Return all texts in decoded JSON, a line each, with their keys before them."""
    lines, rest = [], [value]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            lines += [f'{k}: "{"" if isinstance(v, dict | list) else v}"' for k, v in part.items()]
            rest += part.values()
        elif isinstance(part, list):
            rest += part
        elif isinstance(part, str):
            lines.append(part)
    return "\n".join(lines)
