"""BERT from text: words are hidden as the paper says, the vocabulary comes out the same every time, and losses fall."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from driving import make_predict, read_batch, train

from tensorferry import BadData, BadRecipe
from tensorferry.recipes.bert_pretrain import SIZES, BertPretrain, BertPretrainSettings, HiddenWords
from tensorferry.recipes.models import bert, minilm
from tensorferry.recipes.recipe import Data

SMALL = BertPretrainSettings(batch=4, max_length=16, vocabulary=400)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    animals, verbs, things = (
        ("cat", "dog", "horse", "bird"),
        ("sees", "wants", "finds"),
        ("food", "water", "a friend", "the house"),
    )
    lines = [
        f"The {animal} {verb} {thing}, and then the {animal} sleeps." for animal in animals for verb in verbs for thing in things
    ]
    path.write_text("\n\n".join(lines * 5))
    return path


@pytest.fixture(scope="module")
def data(text: Path) -> Data:
    return BertPretrain(SMALL).load_data(text)


def test_a_few_steps_lower_the_loss_and_the_perplexity(data: Data) -> None:
    torch.manual_seed(0)
    recipe = BertPretrain(SMALL)
    model = recipe.build_model(data)
    predict = make_predict(recipe, model)
    before = recipe.evaluate(predict, data.held_out)
    losses = train(recipe, model, data, 40)
    after = recipe.evaluate(predict, data.held_out)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert after["perplexity"] < before["perplexity"] / 2
    assert after["masked_accuracy"] > before["masked_accuracy"]


def test_perplexity_is_that_of_the_loss(data: Data) -> None:
    recipe = BertPretrain(BertPretrainSettings(batch=1000, max_length=16, vocabulary=400))
    model = recipe.build_model(data).eval()
    held_out = recipe.collate([data.held_out.read(number, np.random.default_rng(number)) for number in range(len(data.held_out))])
    loss = recipe.compute_loss(model, {name: torch.as_tensor(array) for name, array in held_out.items()})
    found = recipe.evaluate(make_predict(recipe, model), data.held_out)
    assert found["perplexity"] == pytest.approx(loss.exp().item(), rel=1e-4)


def test_words_are_hidden_as_the_paper_says(data: Data) -> None:
    chunks = np.full((1, 2000), 300)
    samples = HiddenWords(chunks, data.train.vocabulary)
    sample = samples.read(0, np.random.default_rng(0))
    shown = sample["tokens"][sample["places"]]
    mask = data.train.vocabulary.number("[MASK]")
    assert len(sample["places"]) == len(set(sample["places"])) == bert.count_hidden(2000)
    assert set(sample["words"]) == {300}
    assert np.mean(shown == mask) == pytest.approx(0.8, abs=0.05)
    assert np.mean(shown == 300) == pytest.approx(0.1, abs=0.05)
    elsewhere = np.delete(sample["tokens"], sample["places"])
    assert set(elsewhere) == {300}
    assert set(chunks[0]) == {300}


def test_what_is_hidden_depends_on_the_generator_alone_and_is_never_a_special_token(data: Data) -> None:
    first, again, other = (data.train.read(3, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["places"], other["places"])
    special = {data.train.vocabulary.number(name) for name in ("[CLS]", "[SEP]")}
    words = [word for number in range(len(data.train)) for word in data.train.read(number, np.random.default_rng(0))["words"]]
    assert not special & set(words)


def test_the_vocabulary_is_the_same_in_another_process(text: Path, data: Data) -> None:
    code = (
        "import sys; from pathlib import Path; from tensorferry.recipes.data.tokens import make_vocabulary, read_lines; "
        "lines = read_lines(Path(sys.argv[1])); "
        "print(make_vocabulary([line for number, line in enumerate(lines) if number % 20], 400).tokenizer.to_str())"
    )
    done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == data.train.vocabulary.tokenizer.to_str()


def test_text_becomes_tokens_and_text_again(data: Data) -> None:
    tokenizer = data.train.vocabulary.tokenizer
    assert tokenizer.decode(tokenizer.encode("The cat finds water.").ids).strip() == "the cat finds water."
    assert read_batch(BertPretrain(SMALL), data)["tokens"].shape == (4, 16)


def test_a_tokenizer_of_ones_own_is_taken(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(minilm.load_tokenizer().to_str())
    recipe = BertPretrain(BertPretrainSettings(max_length=16, tokenizer=str(path)))
    assert recipe.load_data(text).train.vocabulary.size == bert.VOCABULARY


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_the_known_one(size: str, data: Data) -> None:
    with torch.device("meta"):
        model = BertPretrain(BertPretrainSettings(size=size)).build_model(data)
    assert (len(model.blocks), model.encoder.tokens.embedding_dim) == SIZES[size][:2]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"size": "larg"}, "unknown size 'larg' (did you mean 'large'?); there are tiny, base, large"),
        ({"max_length": 4}, "max_length to be at least 8 tokens, received 4"),
        ({"vocabulary": 10}, "vocabulary to be at least 300 tokens, received 10"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(BadRecipe, match=re.escape(says)):
        BertPretrainSettings(**changes)


def test_a_text_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    recipe = BertPretrain(SMALL)
    short, binary, lacking = tmp_path / "short.txt", tmp_path / "binary.txt", tmp_path / "tokenizer.json"
    short.write_text("One line.\n" * 30)
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match=r"short\.txt has \d+ chunks of 16 tokens.*Use a longer text"):
        recipe.load_data(short)
    with pytest.raises(BadData, match=r"cannot read .*binary\.txt"):
        recipe.load_data(binary)
    with pytest.raises(BadData, match=r"cannot read .*gone\.txt' as a text: No such file"):
        recipe.load_data(tmp_path / "gone.txt")
    lacking.write_text("{}")
    with pytest.raises(BadData, match=r"cannot read .*tokenizer\.json"):
        BertPretrain(BertPretrainSettings(tokenizer=str(lacking))).load_data(short)
