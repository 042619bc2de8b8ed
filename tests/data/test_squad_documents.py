import json
from dataclasses import asdict
from pathlib import Path

import pytest

from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.squad_documents import (
    INSTRUCTION,
    AnswerSpans,
    build_document_questions,
    encode_row,
    load_questions,
    pad_answer_spans,
    read_rows,
)

COLOURS = ("red", "green", "blue", "white")


def squad(articles: int = 3, paragraphs: int = 4) -> dict:
    def paragraph(article: int, number: int) -> dict:
        context = f"In article {article} the house number {number} is {COLOURS[number % 4]}."
        question = f"Which colour has house {number} of article {article}?"
        return {
            "context": context,
            "qas": [
                {
                    "id": "x",
                    "question": question,
                    "answers": [{"text": COLOURS[number % 4], "answer_start": 0}],
                }
            ],
        }

    data = [{"paragraphs": [paragraph(a, n) for n in range(paragraphs)]} for a in range(articles)]
    return {"version": "1.1", "data": data}


@pytest.fixture
def squad_file(tmp_path: Path) -> Path:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(squad()))
    return path


def test_questions_know_their_paragraph_and_article(squad_file: Path) -> None:
    loaded = load_questions(squad_file)
    assert (len(loaded.questions), len(loaded.paragraphs)) == (12, 12)
    question = loaded.questions[5]
    assert loaded.paragraphs[question.paragraph].startswith("In article 1 the house number 1")
    assert all("article 1" in loaded.paragraphs[place] for place in question.same_article)
    assert len(question.same_article) == 3


def test_prompts_from_a_large_set_are_filled_as_well(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text(json.dumps(squad(articles=300)))
    rows = build_document_questions(
        load_questions(tmp_path / "large.json"), build_byte_tokenizer(), length=2048, count=5
    )
    assert all(1900 < row.length <= 2032 for row in rows)
    assert rows[0].input.count("Document ") == len(set(rows[0].input.split("\n\n"))) - 3


def test_unanswerable_questions_are_left_out(tmp_path: Path) -> None:
    content = squad(1, 2)
    content["data"][0]["paragraphs"][0]["qas"][0].update(is_impossible=True, answers=[])
    (tmp_path / "v2.json").write_text(json.dumps(content))
    assert len(load_questions(tmp_path / "v2.json").questions) == 1


@pytest.mark.parametrize("length", [700, 900])
def test_prompt_fits_holds_its_paragraph_and_ends_with_the_question(squad_file: Path, length: int) -> None:
    loaded = load_questions(squad_file)
    for row in build_document_questions(loaded, build_byte_tokenizer(), length):
        question = loaded.questions[row.index]
        assert len(row.input.encode()) == row.length <= length - 16
        assert row.input.startswith(INSTRUCTION + "\n\nThe following are given documents.\n\nDocument 1:\n")
        assert row.input.endswith(f"\n\n{INSTRUCTION}\n\nQuestion: {question.text} Answer:")
        assert loaded.paragraphs[question.paragraph] in row.input


def test_longer_prompts_hold_more_documents(squad_file: Path) -> None:
    loaded, tokenizer = load_questions(squad_file), build_byte_tokenizer()
    short, long = (build_document_questions(loaded, tokenizer, length)[0].input for length in (600, 1200))
    assert long.count("Document ") > short.count("Document ") >= 1


def test_a_seed_gives_the_same_rows_whatever_their_number(squad_file: Path) -> None:
    loaded, tokenizer = load_questions(squad_file), build_byte_tokenizer()
    assert (
        build_document_questions(loaded, tokenizer, 700, 3)
        == build_document_questions(loaded, tokenizer, 700)[:3]
    )
    assert build_document_questions(loaded, tokenizer, 700, seed=1) != build_document_questions(
        loaded, tokenizer, 700
    )


def test_question_that_cannot_fit_is_refused(squad_file: Path) -> None:
    with pytest.raises(DataError, match="no question fits into 100 tokens"):
        build_document_questions(load_questions(squad_file), build_byte_tokenizer(), 100)


def test_rows_survive_a_file(squad_file: Path, tmp_path: Path) -> None:
    rows = build_document_questions(load_questions(squad_file), build_byte_tokenizer(), 700)
    lines = [json.dumps(asdict(row)) + "\n" for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    assert read_rows(tmp_path / "rows.jsonl") == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json", "is not JSON"),
        ("[]", "no JSON object"),
        ('{"data": [{"title": "x"}]}', "missing or wrong 'paragraphs'"),
        ('{"data": []}', "no question with an answer"),
    ],
)
def test_wrong_json_is_explained(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "wrong.json").write_text(content)
    with pytest.raises(DataError, match=message):
        load_questions(tmp_path / "wrong.json")


@pytest.mark.parametrize("content", ["{", '{"index": 1}', "3"])
def test_wrong_rows_are_named_by_line(tmp_path: Path, content: str) -> None:
    good = json.dumps({"index": 0, "input": "x", "outputs": ["y"]})
    (tmp_path / "rows.jsonl").write_text(f"{good}\n{content}\n")
    with pytest.raises(DataError, match="line 2"):
        read_rows(tmp_path / "rows.jsonl")


def test_targets_are_the_answer_alone(squad_file: Path) -> None:
    tokenizer = build_byte_tokenizer()
    rows = build_document_questions(load_questions(squad_file), tokenizer, 700)
    item = AnswerSpans(rows[:1], tokenizer, longest=2000)[0]
    assert bytes(item["labels"][item["labels"] >= 0].tolist()).decode() == " " + rows[0].outputs[0]


def test_too_long_rows_are_left_out_and_counted(squad_file: Path) -> None:
    tokenizer = build_byte_tokenizer()
    rows = build_document_questions(load_questions(squad_file), tokenizer, 700)
    shortest = min(sum(len(part) for part in encode_row(row, tokenizer)) for row in rows)
    spans = AnswerSpans(rows, tokenizer, longest=shortest)
    assert len(spans) + spans.left_out == len(rows)
    with pytest.raises(DataError, match="longer than 10 tokens"):
        AnswerSpans(rows, tokenizer, longest=10)


def test_padding_is_on_the_right_and_never_a_target(squad_file: Path) -> None:
    tokenizer = build_byte_tokenizer()
    rows = build_document_questions(load_questions(squad_file), tokenizer, 700)
    items = [AnswerSpans(rows, tokenizer, 2000)[place] for place in (0, 1, 2)]
    batch = pad_answer_spans(items)
    for place, item in enumerate(items):
        size = len(item["input_ids"])
        assert batch["input_ids"][place, :size].equal(item["input_ids"])
        assert batch["attention_mask"][place].sum() == size
        assert (batch["labels"][place, size:] == -100).all()
