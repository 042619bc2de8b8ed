"""Secrets, paths, scripts and pickles are found wherever they hide, and ordinary files pass."""

import json
import pickle
import struct
import zlib

import pytest

from seqpe_zoo.hub.contents import find_problems, is_pickle
from seqpe_zoo.hub.scan import scan
from tests.hub.helpers import safetensors_bytes

RANDOM = "a1B2c3D4e5" * 4  # all secrets here are put together, so that scanners of repositories stay calm
TOKEN = "hf_" + RANDOM[:34]
PATH, KEY, SCRIPT = "names a folder", "contains a key or password", "contains a script"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('data = "C:\\\\Users\\\\me\\\\data"', PATH),
        ("D:\\\\models\\\\run1\\\\last", PATH),
        ("C:\\Users\\me", PATH),
        ("see file:///srv/run", PATH),
        ("trained on /data/imagenet", PATH),
        ("/var/lib/runs", PATH),
        ("~/runs/seqpe", PATH),
        ('"first\\n/home/me/second"', PATH),
        ("%2Fhome%2Fme", PATH),
        (f"wandb{TOKEN}", "a Hugging Face token"),
        (f"run_{TOKEN}_last", "a Hugging Face token"),
        (TOKEN.replace("_", "\\_"), "a Hugging Face token"),
        (TOKEN.replace("h", "\\u0068", 1), "a Hugging Face token"),
        (TOKEN.replace("h", "&#104;", 1), "a Hugging Face token"),
        (TOKEN.replace("_", "%5F"), "a Hugging Face token"),
        ("xAKIA" + "ABCDEFGHIJ012345", "an AWS key"),
        ("xgh" + f"p_{RANDOM}", "a GitHub token"),
        ("AIza" + RANDOM[:35], "a Google key"),
        ("sk-" + f"proj-{RANDOM}", "an API key"),
        ("gl" + "pat-" + RANDOM[:20], "a GitLab token"),
        ("eyJ" + f"{RANDOM}.eyJ{RANDOM}.{RANDOM}", "a JSON web token"),
        (f"Authorization: Bearer {RANDOM}", "a bearer token"),
        ('headers={"Authorization": "token ' + RANDOM + '"}', "a bearer token"),
        ("-----BEGIN OPENSSH " + "PRIVATE KEY-----", "a private key"),
        ("https://me:" + "secret@host.org/x", "a password in an address"),
        ("WANDB_API_KEY=" + "0123456789abcdef" * 2, KEY),
        ("export HF_TOKEN=" + RANDOM[:20], KEY),
        ("password = hunter2hunter2", KEY),
        ("password: 'correct-horse'", KEY),
        ("password: hunter2hunter2", KEY),
        ("aws_secret_access_key = " + RANDOM, KEY),
        ('{"api_key": "' + RANDOM[:16] + '"}', KEY),
        ("client_secret='" + RANDOM[:8] + "'", KEY),
        ("AccountKey=" + RANDOM * 2, "an API key"),
        ("wandb login " + "0123456789abcdef01234567" + "89abcdef01234567", "an API key"),
        ('{"username": "me", "key": "' + "0123456789abcdef" * 2 + '"}', "an API key"),
        ("machine huggingface.co login me " + "password hunter2x9", "a password in an address"),
        ("/kaggle/input/x", PATH),
        ("${HOME}/runs", PATH),
        ("\\\\server\\share\\me", PATH),
        ("<img/src=x/onerror=alert(1)>", SCRIPT),
        ("[x](java\tscript:1)", SCRIPT),
        ('<meta http-equiv=refresh content="0;url=x">', SCRIPT),
        ("<style>@import 'https://a.org/x'</style>", SCRIPT),
        ("<script>alert(1)</script>", SCRIPT),
        ("<img src=x onerror=alert(1)>", SCRIPT),
        ("[click](javascript:alert(1))", SCRIPT),
        ("[click](&#106;avascript:alert(1))", SCRIPT),
        ('<iframe src="https://a.org">', SCRIPT),
    ],
)
def test_what_must_not_travel_is_found(text, words):
    assert any(words in problem for problem in scan("README.md", f"before\n{text}\nafter"))


@pytest.mark.parametrize(
    "text",
    [
        "password = getpass.getpass()",
        'token = os.environ["HF_TOKEN"]',
        "api_key = settings.api_key",
        "api_key: str | None = None",
        '{"password": 28712, "Ġpassword": 18452}',
        "the bearer of responsibilities",
        "https://host.org/data/x and https://host.org/~me/x",
        "Q:\\nWhat is this?",
        "EOS_TOKEN = '<|endoftext|>'",
        "task-aware-position-encoding-for-very-long-sequences-2024",
        "a/b/data/x, and/or, 10:30, s3://bucket/data",
        '<img src="plot.png" width="400">',
        "if a <b and once = 1",
        "<metadata>a plot</metadata> of the form a/once=1",
        "f\\n\\nnext\\nline and \\\\alpha\\\\beta",
        "model = AutoModel.from_pretrained(place, trust_remote_code=True)",
    ],
)
def test_ordinary_text_passes(text):
    assert scan("README.md", text) == []


def test_a_message_does_not_repeat_the_secret():
    assert RANDOM[:20] not in "".join(scan("config.json", TOKEN))


@pytest.mark.parametrize(
    "text",
    [
        '<svg xmlns="http://www.w3.org/2000/svg"><script>x</script></svg>',
        "<svg onload='x'/>",
        "<svg><svg:script href='x'/></svg>",
        "<svg><a href='javascript:x'/></svg>",
        "<svg><foreignObject/></svg>",
        "<!DOCTYPE svg [<!ENTITY x 'y'>]><svg/>",
        "<svg><set onbegin='x'/></svg>",
    ],
)
def test_scripts_in_an_svg_are_found(folder, text):
    (folder / "plot.svg").write_text(text)
    assert find_problems(folder) == ["plot.svg: contains a script, or markup that can run one"]


def test_a_plot_of_matplotlib_passes(folder):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figure.subplots().plot([1, 2], label="seqpe")
    figure.savefig(folder / "plot.svg")
    figure.savefig(folder / "plot.png")
    assert find_problems(folder) == []


def png(*chunks):
    """Return a PNG image of one pixel with more chunks."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"\0\0"))]
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in [*parts, *chunks, (b"IEND", b"")]:
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content


@pytest.mark.parametrize(
    "chunk",
    [
        (b"tEXt", b"Comment\0" + TOKEN.encode()),
        (b"zTXt", b"Comment\0\0" + zlib.compress(TOKEN.encode())),
        (b"iTXt", b"Comment\0\1\0en\0\0" + zlib.compress(TOKEN.encode())),
        (b"eXIf", b"MM\0*" + TOKEN.encode()),
    ],
    ids=lambda chunk: chunk[0].decode(),
)
def test_tokens_in_the_texts_of_a_png_are_found(folder, chunk):
    (folder / "plot.png").write_bytes(png(chunk))
    assert find_problems(folder) == ["plot.png: contains a Hugging Face token"]


def test_what_is_no_complete_png_is_refused(folder):
    for content in (png()[:-5], png() + b"more", b"\x89PNG\r\n\x1a\n", b"GIF89a"):
        (folder / "plot.png").write_bytes(content)
        assert [problem for problem in find_problems(folder) if problem.startswith("plot.png: ")], content
    (folder / "plot.png").write_bytes(png())
    assert find_problems(folder) == []


def test_tokens_in_tensor_names_are_found(folder):
    (folder / "model.safetensors").write_bytes(safetensors_bytes(name=f"layer_{TOKEN}.weight"))
    assert find_problems(folder) == ["model.safetensors: contains a Hugging Face token"]


def test_escaped_tokens_and_paths_in_json_are_found(folder):
    note = json.dumps({"note": TOKEN, "run": "/" + "home/me/run"}).replace("hf_", "\\u0068\\u0066_")
    (folder / "generation_config.json").write_text(note.replace("/", "\\/"))
    problems = "\n".join(find_problems(folder))
    assert "generation_config.json: contains a Hugging Face token" in problems
    assert "generation_config.json: names a folder" in problems


def test_words_of_a_vocabulary_may_look_like_paths(folder):
    vocabulary = {"/" + "home/pi": 0, "/var/www": 1, "~/.": 2}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [["/var", "/www"]]}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model}))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n/var /www\n/var/ www\n")
    assert find_problems(folder) == []
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "from": "/" + "home/me/tokenizer"}))
    assert [problem for problem in find_problems(folder) if "tokenizer.json: names a folder" in problem]


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("value", [{"weight": [1.0]}, [1, "a"], (None,), print], ids=str)
def test_pickles_of_every_protocol_are_found_under_any_name(folder, protocol, value):
    content = pickle.dumps(value, protocol=protocol)
    assert is_pickle(content)
    (folder / "merges.txt").write_bytes(content)
    assert any(problem.startswith("merges.txt: its content is a pickle") for problem in find_problems(folder))


@pytest.mark.parametrize(
    "text", ["{}", "---\nlicense: mit\n---\n", "import torch\n", "#version: 0.2\na b\n", "1.0"]
)
def test_texts_are_no_pickles(text):
    assert not is_pickle(text.encode())
