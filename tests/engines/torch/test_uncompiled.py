"""What is compiled inside a context runs op by op, also where the compiler was not loaded when the context was entered."""

from programs import run_program

PROGRAM = """
    import json, sys
    import torch
    from torch import nn
    import tensorferry as ferry

    def layers():
        torch.manual_seed(0)
        return nn.Sequential(*[part for _ in range(3) for part in (nn.Linear(256, 256), nn.GELU())])

    def train(model, call):
        losses = []
        for step in range(4):
            loss = call(torch.full((1024, 256), 0.1 * step)).square().mean()
            loss.backward()
            losses.append(loss.item())
        return losses, [parameter.grad.tolist() for parameter in model.parameters()]

    model = layers()
    plain = train(model, model)
    finders, found = list(sys.meta_path), {}
    was_loaded = "torch._dynamo" in sys.modules
    for name in ("a wrapper", "the module itself"):
        model = layers()
        with ferry.large_model(model, budget="1GiB", min_nbytes=512) as big:
            if name == "a wrapper":
                call = torch.compile(model, backend="aot_eager")
            else:
                call = model
                model.compile(backend="aot_eager")
            outcome = train(model, call)
        report = big.report()
        notes = [note for note in report.notes if "uncompiled" in note]
        found[name] = [outcome == plain, len(notes), len(report.trace.movable) > 0]

    frames = torch._dynamo.testing.CompileCounter()
    torch.compile(lambda x: x + 1, backend=frames)(torch.ones(2))
    print(json.dumps({
        "was_loaded": was_loaded,
        "found": found,
        "num_compiled_after": frames.frame_count,
        "finders": finders == sys.meta_path,
        "loader": type(torch._dynamo.__loader__).__name__,
    }))
"""


def test_what_is_compiled_inside_a_context_that_met_no_compiler_runs_uncompiled_and_the_report_says_so() -> None:
    seen = run_program(PROGRAM)
    assert not seen["was_loaded"]
    assert seen["found"] == {"a wrapper": [True, 1, True], "the module itself": [True, 1, True]}
    assert seen["num_compiled_after"] == 1
    assert seen["finders"]
    assert seen["loader"] == "SourceFileLoader"
