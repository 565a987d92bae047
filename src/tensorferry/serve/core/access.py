"""Who may ask what: by the name that a client calls the server by, and by its key.

Inference and control may have keys of their own. A key for control is good for inference too; one for inference is told that it
is not enough.
"""

from dataclasses import dataclass

from tensorferry.serve.core.faults import Denied, Forbidden
from tensorferry.serve.core.hosts import AllowedHosts
from tensorferry.serve.core.keys import ApiKeys


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one port."""

    hosts: AllowedHosts
    keys: ApiKeys | None = None
    admin_keys: ApiKeys | None = None  # for control calls and metrics; None: the same keys
    has_control: bool = True  # False: control calls and metrics have another port

    @property
    def has_keys(self) -> bool:
        """Whether any call needs a key."""
        return self.keys is not None or self.admin_keys is not None

    def check(self, key: str, *, is_control: bool = False, needs_key: bool = True) -> None:
        """Raise Denied or Forbidden unless a client that sends `key` may make a call."""
        if is_control and not self.has_control:
            raise Forbidden("control calls, metrics and the status page are on the admin port of this server")
        if not needs_key:
            return
        if self.admin_keys is None:
            if self.keys is not None:
                self.keys.check(key)
        elif is_control:
            self._check_admin(key)
        elif self.keys is not None and not self.keys.knows(key):
            self.admin_keys.check(key)

    def _check_admin(self, key: str) -> None:
        assert self.admin_keys is not None
        try:
            self.admin_keys.check(key)
        except Denied:
            if self.keys is not None and self.keys.knows(key):
                raise Forbidden("this key is for inference; control calls and metrics need one of the admin keys") from None
            raise
