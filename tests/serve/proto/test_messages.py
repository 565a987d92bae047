"""Our messages are those of the public protocols: compiled from the .proto files beside them, and the same on the wire."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from tensorferry.serve import proto

FOLDER = Path(proto.__file__).parent


def test_the_descriptors_are_those_of_the_files(tmp_path: Path) -> None:
    out = tmp_path / "descriptors.binpb"
    files = sorted(map(str, FOLDER.glob("*.proto")))
    options = ["-I", str(FOLDER), "--include_imports", f"--descriptor_set_out={out}"]  # as in `make proto`
    subprocess.run([sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc", *options, *files], check=True)
    made = FileDescriptorSet.FromString(out.read_bytes())
    kept = FileDescriptorSet.FromString((FOLDER / "descriptors.binpb").read_bytes())
    assert {file.name: file for file in kept.file} == {file.name: file for file in made.file}


@pytest.mark.parametrize("theirs", [service_pb2, model_config_pb2, reflection_pb2], ids=lambda module: module.__name__)
def test_messages_are_the_same_on_the_wire(theirs: Any) -> None:
    names = theirs.DESCRIPTOR.message_types_by_name
    assert names
    for name, message in names.items():
        assert _shape(proto.POOL.FindMessageTypeByName(message.full_name)) == _shape(message), name
    for name, enum in theirs.DESCRIPTOR.enum_types_by_name.items():
        assert _values(proto.POOL.FindEnumTypeByName(enum.full_name)) == _values(enum), name


@pytest.mark.parametrize("theirs", [service_pb2, reflection_pb2], ids=lambda module: module.__name__)
def test_services_have_the_same_methods(theirs: Any) -> None:
    for service in theirs.DESCRIPTOR.services_by_name.values():
        assert _methods(proto.POOL.FindServiceByName(service.full_name)) == _methods(service)


def test_both_versions_of_reflection_have_the_same_messages() -> None:
    old, new = (proto.POOL.FindFileByName(name) for name in ("reflection_v1alpha.proto", "reflection.proto"))
    assert old.message_types_by_name.keys() == new.message_types_by_name.keys()
    for name, message in new.message_types_by_name.items():
        assert _shape(old.message_types_by_name[name]) == _shape(message)


def _shape(message: Any) -> dict[str, Any]:
    """Everything of a message that is seen on the wire, in text format or in JSON."""
    fields = {}
    for field in message.fields:
        kind = field.message_type.name if field.message_type else field.enum_type.name if field.enum_type else ""
        oneof = field.containing_oneof.name if field.containing_oneof else ""
        is_packed = field.is_packed if field.is_repeated else False
        fields[field.name] = (field.number, field.type, field.is_repeated, is_packed, field.json_name, kind, oneof)
    return {
        "fields": fields,
        "enums": {enum.name: _values(enum) for enum in message.enum_types},
        "nested": {nested.name: _shape(nested) for nested in message.nested_types},
    }


def _values(enum: Any) -> dict[str, int]:
    return {value.name: value.number for value in enum.values}


def _methods(service: Any) -> dict[str, tuple[str, str, bool, bool]]:
    return {
        method.name: (method.input_type.name, method.output_type.name, method.client_streaming, method.server_streaming)
        for method in service.methods
    }
