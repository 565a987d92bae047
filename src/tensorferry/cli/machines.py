"""`ferry machines`: the machines that estimates know, and how fast this one is."""

import argparse
import json

_EXAMPLES = """examples:
  ferry machines             the table
  ferry machines --json      the same for programs, with every source
  ferry machines --networks  the links between GPUs that estimates of clusters know
  ferry machines measure     measure this machine again; estimates call it "this"
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add this verb."""
    parser = verbs.add_parser(
        "machines",
        help="list the machines that estimates know, or measure this one",
        description="List the machines that estimates know, each with its source, or measure this one.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="?", choices=("list", "measure"), default="list", help="list all (default), or measure this one"
    )
    parser.add_argument("--networks", action="store_true", help="list links between GPUs instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from tensorferry import BadOption, list_machines, this_machine
    from tensorferry.estimation.machines import render_machines, render_networks
    from tensorferry.machine import list_networks

    if options.networks:
        if options.what == "measure":
            raise BadOption("networks are known by their data sheets and are not measured; leave measure or --networks out")
        networks = list_networks()
        print(json.dumps([asdict(network) for network in networks], indent=1) if options.json else render_networks(networks))
        return 0
    machines = list_machines() if options.what == "list" else (this_machine(refresh=True),)
    print(json.dumps([asdict(machine) for machine in machines], indent=1) if options.json else render_machines(machines))
    return 0
