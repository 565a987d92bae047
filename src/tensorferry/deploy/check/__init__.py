"""What a cluster would refuse of a chart or of a folder of manifests, told before it sees them.

A chart is linted and rendered by Helm; what comes out is held against the schemas of Kubernetes, where `kubernetes-validate` is
installed, and against rules of our own: what a schema cannot say, such as a selector that selects nothing.
"""

from dataclasses import dataclass

from tensorferry.deploy.check.charts import is_chart, render_chart
from tensorferry.deploy.check.finding import Finding
from tensorferry.deploy.check.manifests import Manifest, read_manifests, split_manifests
from tensorferry.deploy.check.objects import check_objects
from tensorferry.deploy.check.pods import check_pods
from tensorferry.deploy.check.schemas import check_schemas, newest_version
from tensorferry.deploy.check.selectors import check_selectors
from tensorferry.deploy.options import CheckOptions
from tensorferry.errors import BadOption

__all__ = ["CheckResult", "Finding", "check", "check_manifests"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was found, and what could not be looked at."""

    num_objects: int
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...] = ()


def check(options: CheckOptions) -> CheckResult:
    """Look at a chart or a folder of manifests; raises BadOption where it is neither."""
    if not options.folder.is_dir():
        raise BadOption(f"no folder {str(options.folder)!r}; name a chart, or a folder of manifests")
    if not is_chart(options.folder):
        if options.values:
            raise BadOption(f"--values needs a chart, and {str(options.folder)!r} has no Chart.yaml")
        manifests, findings = read_manifests(options.folder)
        if not manifests and not findings:
            raise BadOption(f"{str(options.folder)!r} is no chart and holds no .yaml files")
        return _add_findings(manifests, findings, options, [])
    rendered = render_chart(options.folder, options.values, options.kubernetes or newest_version())
    manifests, findings = split_manifests(rendered.text)
    return _add_findings(manifests, [*rendered.findings, *findings], options, rendered.not_checked)


def check_manifests(manifests: list[Manifest]) -> list[Finding]:
    """What our own rules find, whatever made the manifests."""
    return [*check_objects(manifests), *check_pods(manifests), *check_selectors(manifests)]


def _add_findings(manifests: list[Manifest], found: list[Finding], options: CheckOptions, not_checked: list[str]) -> CheckResult:
    by_schema, missed = check_schemas(manifests, options.kubernetes, options.definitions)
    findings = [*found, *by_schema, *check_manifests(manifests)]
    return CheckResult(len(manifests), tuple(dict.fromkeys(findings)), (*not_checked, *missed))
