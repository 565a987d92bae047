"""The messages of the protocols, made from the .proto files beside this one; `make proto` compiles those to `descriptors.binpb`.

They live in a pool of their own: a program that also has tritonclient, or gRPC's own health and reflection packages, has messages
of the same names in the common pool, where each name may stand once.
"""

from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

_FILES = FileDescriptorSet.FromString(files(__name__).joinpath("descriptors.binpb").read_bytes())
POOL = DescriptorPool()
for _file in _FILES.file:
    POOL.AddSerializedFile(_file.SerializeToString())


def _read_package(package: str) -> Any:
    """The classes of a package's messages and its enums, by name."""
    found = SimpleNamespace()
    for file in (POOL.FindFileByName(file.name) for file in _FILES.file if file.package == package):
        for name, message in file.message_types_by_name.items():
            setattr(found, name, GetMessageClass(message))
        for name, enum in file.enum_types_by_name.items():
            setattr(found, name, EnumTypeWrapper(enum))
    return found


inference = _read_package("inference")
health = _read_package("grpc.health.v1")
reflection = _read_package("grpc.reflection.v1")  # v1alpha has the same messages
