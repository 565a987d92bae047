"""System shared memory that clients register, so that tensors need not travel.

Regions are read and written with `pread` and `pwrite`, never mapped: a client that shrinks its region gets an error, where a
mapping would kill the server.
"""

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tensorferry.serve.core.faults import Conflict, InvalidRequest, NotFound, TooLarge, Unsupported
from tensorferry.serve.core.limits import MAX_REGIONS
from tensorferry.serve.core.requests import RegionSlice

_KEY = re.compile(r"/?[^/\0]{1,254}")
_FOLDER = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Region:
    """A registered part of a shared-memory object."""

    name: str
    key: str
    offset: int
    nbytes: int
    descriptor: int


class Regions:
    """The regions that clients have registered, by name."""

    def __init__(self, prefix: str | None = None, max_nbytes: int = 0) -> None:
        self.prefix = prefix  # with which the names of objects begin that clients may use; None: they may use none
        self.max_nbytes = max_nbytes  # of all regions together
        self.regions: dict[str, Region] = {}
        self.lock = threading.Lock()

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Open a shared-memory object; the client may unlink it afterwards."""
        if self.prefix is None:
            raise Unsupported("shared memory is off; start the server with --shared-memory PREFIX")
        if not _KEY.fullmatch(key) or key.strip("/") in (".", ".."):
            raise InvalidRequest(f"the shared-memory key {key!r} is not the name of one object")
        if not key.removeprefix("/").startswith(self.prefix):
            raise InvalidRequest(f"the shared-memory key {key!r} does not begin with {self.prefix!r}, as it must")
        with self.lock:
            if name in self.regions:
                raise Conflict(f"shared memory region '{name}' already registered; unregister it first")
            self._check_room(nbytes)
            try:
                descriptor = os.open(
                    f"{_FOLDER}/{key.removeprefix('/')}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                )
            except OSError as error:
                raise InvalidRequest(f"cannot open the shared-memory object {key!r}: {error.strerror}") from None
            size = os.fstat(descriptor).st_size
            if nbytes < 1 or offset < 0 or offset + nbytes > size:
                os.close(descriptor)
                raise InvalidRequest(f"region '{name}' would be bytes {offset} to {offset + nbytes}, {key!r} has {size}")
            self.regions[name] = Region(name, key, offset, nbytes, descriptor)

    def unregister(self, name: str) -> None:
        """Close one region, or all where `name` is empty; an unknown one is no error, as the protocol has it."""
        with self.lock:
            gone = [self.regions.pop(name, None)] if name else [self.regions.pop(each) for each in list(self.regions)]
            for region in gone:
                if region is not None:
                    os.close(region.descriptor)

    def status(self, name: str) -> list[Region]:
        """One region, or all where `name` is empty."""
        with self.lock:
            if name and name not in self.regions:
                raise NotFound(f"Unable to find system shared memory region: '{name}'")
            return [self.regions[name]] if name else list(self.regions.values())

    def read(self, place: RegionSlice) -> bytes:
        """The bytes at `place`."""
        with self._open(place) as (descriptor, begin):
            data = os.pread(descriptor, place.nbytes, begin)
        if len(data) != place.nbytes:
            raise InvalidRequest(
                f"shared memory region '{place.region}' has shrunk: {len(data)} of {place.nbytes} bytes were read"
            )
        return data

    def write(self, place: RegionSlice, data: bytes) -> None:
        """Put `data` at the start of `place`."""
        if len(data) > place.nbytes:
            raise InvalidRequest(
                f"the output takes {len(data)} bytes, {place.nbytes} of region '{place.region}' are given for it"
            )
        with self._open(place) as (descriptor, begin):
            if os.fstat(descriptor).st_size < begin + len(data):
                raise InvalidRequest(f"shared memory region '{place.region}' has shrunk")
            os.pwrite(descriptor, data, begin)

    @contextlib.contextmanager
    def _open(self, place: RegionSlice) -> Iterator[tuple[int, int]]:
        """A descriptor of a place's object, open whatever becomes of the region, and where in it the place begins."""
        with self.lock:  # not while bytes are copied: the event loop takes it too
            region = self._find(place)
            descriptor = os.dup(region.descriptor)
        try:
            yield descriptor, region.offset + place.offset
        finally:
            os.close(descriptor)

    def _check_room(self, nbytes: int) -> None:
        if len(self.regions) >= MAX_REGIONS:
            raise TooLarge(f"{MAX_REGIONS} regions are registered, which is the most this server takes; unregister some")
        total = nbytes + sum(region.nbytes for region in self.regions.values())
        if total > self.max_nbytes:
            raise TooLarge(f"all regions would be {total} bytes together, the most this server takes is {self.max_nbytes}")

    def close(self) -> None:
        """Close everything."""
        self.unregister("")

    def _find(self, place: RegionSlice) -> Region:
        region = self.regions.get(place.region)
        if region is None:
            raise InvalidRequest(f"Unable to find shared memory region: '{place.region}'")
        if place.offset < 0 or place.nbytes < 0 or place.offset + place.nbytes > region.nbytes:
            raise InvalidRequest(
                f"bytes {place.offset} to {place.offset + place.nbytes} are beyond region '{place.region}' of {region.nbytes}"
            )
        return region
