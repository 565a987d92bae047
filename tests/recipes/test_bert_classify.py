"""Sentences into classes: the encoder is the one that was trained elsewhere, and a few steps teach it new classes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from driving import make_predict, read_batch, train
from torch.nn import functional

from tensorferry.recipes.bert_classify import BertClassify, BertClassifySettings
from tensorferry.recipes.data import python_docs
from tensorferry.recipes.models import minilm
from tensorferry.recipes.models.bert import Classifier, pool
from tensorferry.recipes.recipe import Data

GOOD = ("wonderful", "great", "delightful", "superb", "lovely", "excellent")
BAD = ("awful", "terrible", "boring", "dreadful", "horrible", "useless")
SMALL = BertClassifySettings(batch=8)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reviews") / "reviews.csv"
    lines = [
        f"the {thing} was {word},{label}"
        for thing in ("film", "meal")
        for label, words in (("good", GOOD), ("bad", BAD))
        for word in words
    ]
    path.write_text("\n".join(["text,label", *lines]))
    return path


@pytest.fixture(scope="module")
def data(reviews: Path) -> Data:
    return BertClassify(SMALL).load_data(reviews)


def test_the_encoder_gives_the_published_similarity() -> None:
    """The first example of the model's own documentation: 0.7553."""
    encoder = minilm.make_encoder().eval()
    minilm.load_weights(encoder)
    tokenizer = minilm.load_tokenizer()
    tokenizer.enable_padding()
    texts = tokenizer.encode_batch(["A man is eating food.", "A man is eating a piece of bread.", "Share prices fell."])
    ids, mask = (torch.tensor([getattr(text, part) for text in texts]) for part in ("ids", "attention_mask"))
    with torch.no_grad():
        first, near, far = functional.normalize(pool(encoder(ids, mask), mask))
    assert (first @ near).item() == pytest.approx(0.7553, abs=1e-4)
    assert (first @ far).item() < 0.1


def test_a_few_steps_teach_new_classes(data: Data) -> None:
    torch.manual_seed(0)
    recipe = BertClassify(SMALL)
    model = recipe.build_model(data)
    losses = train(recipe, model, data, 8)
    assert np.mean(losses[-2:]) < np.mean(losses[:2])
    assert recipe.evaluate(make_predict(recipe, model), data.train)["accuracy"] > 0.8
    assert data.labels == ("bad", "good")


def test_a_frozen_encoder_keeps_its_weights_and_the_head_learns(data: Data) -> None:
    recipe = BertClassify(BertClassifySettings(batch=8, frozen=True))
    model = recipe.build_model(data)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    train(recipe, model, data, 2)
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed == {"classify.weight", "classify.bias"}


def test_from_scratch_the_encoder_is_random(data: Data) -> None:
    pretrained, scratch = (BertClassify(SMALL, start).build_model(data) for start in BertClassify.starts)
    assert pretrained.state_dict().keys() == scratch.state_dict().keys()
    assert not torch.equal(pretrained.encoder.tokens.weight, scratch.encoder.tokens.weight)


def test_padding_changes_no_score(data: Data) -> None:
    recipe = BertClassify(SMALL)
    model = Classifier(minilm.make_encoder(), minilm.WIDTH, 2)
    predict = make_predict(recipe, model)
    sample = data.train.read(0, np.random.default_rng(0))
    alone = {name: sample[name][None] for name in recipe.inputs}
    batch = recipe.collate([sample])
    assert batch["ids"].shape == (1, 16)
    assert batch["ids"].shape[1] > len(sample["ids"]) == batch["mask"].sum()
    np.testing.assert_allclose(predict({name: batch[name] for name in recipe.inputs}), predict(alone), atol=1e-5)


def test_a_long_sentence_is_cut_and_never_padded_beyond_the_longest_allowed(reviews: Path) -> None:
    recipe = BertClassify(BertClassifySettings(batch=4, max_length=5))
    data = recipe.load_data(reviews)
    assert read_batch(recipe, data)["ids"].shape == (4, 5)


def test_the_described_transform_gives_what_the_model_was_trained_on(reviews: Path, data: Data) -> None:
    from tokenizers import Tokenizer

    transform = BertClassify(SMALL).describe_transform(data)
    tokenizer = Tokenizer.from_str(transform["tokenizer"])
    known = {tuple(data.train.read(number, np.random.default_rng(0))["ids"]) for number in range(len(data.train))}
    ids = [tuple(tokenizer.encode(f"the film was {word}").ids) for word in (*GOOD, *BAD)]
    assert len(known.intersection(ids)) >= 9
    assert (transform["kind"], transform["ids"], transform["mask"], transform["max_length"]) == ("text", "ids", "mask", 64)


def test_the_held_out_sentences_are_the_same_every_time_and_none_is_trained_on(reviews: Path, data: Data) -> None:
    again = BertClassify(SMALL).load_data(reviews)
    held_out, trained, held_out_again = (
        {tuple(samples.ids[number]) for number in range(len(samples))} for samples in (data.held_out, data.train, again.held_out)
    )
    assert held_out == held_out_again
    assert not held_out & trained


def test_without_a_file_there_are_sentences_of_many_topics() -> None:
    pairs = python_docs.read_topics()
    labels = [label for _, label in pairs]
    assert len(pairs) > 4000
    assert len({text for text, _ in pairs}) == len(pairs)
    assert {label for label in set(labels) if labels.count(label) > 100} >= {"files", "mail", "network", "numbers", "testing"}
    assert all(text[0].isupper() and text[-1] in ".?!" and ">>>" not in text for text, _ in pairs)
