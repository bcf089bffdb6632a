"""A Llama of Transformers with Entwine's row-parallel layers, under torchrun: logits, tokens and
every gradient as in one process.  Skipped where transformers is not installed."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MISSING = [name for name in ("torch", "transformers", "accelerate")
           if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: NO "
                                f"TRANSFORMERS TEST WAS RUN")


def torchrun(program, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               "2", str(program), *arguments]
    # Not killed by Python: ended by SIGTERM, torchrun takes its ranks along.
    ran = subprocess.run(["timeout", "-k", "5", "200", *command], capture_output=True, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=220)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", ["torch_transformers.py", "torch_transformers_modules.py"])
def test_examples(name):
    out = torchrun(EXAMPLES / name)
    assert out.count("tokens are the same") == 2, out


def test_gradients():
    out = torchrun(__file__)
    assert out.count("gradients are right") == 6, out


# ---- On the ranks ----------------------------------------------------------------------------

def gradients_of(model, tokens):
    model.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def part_of(whole, shape, world):
    """This rank's part of a gradient: of its rows, its columns, or all of it."""
    for dimension in (0, 1):
        if dimension < whole.dim() and whole.shape[dimension] != shape[dimension]:
            return whole.chunk(world.size, dimension)[world.rank]
    return whole


def rank_main():
    import torch
    import torch.distributed as dist
    sys.path.insert(0, str(EXAMPLES))
    import entwine.torch
    import torch_transformers as client
    import torch_transformers_modules as modules
    from transformers import LlamaForCausalLM
    dist.init_process_group("gloo")
    world = entwine.torch.world_of()
    tokens = torch.randint(128, (3, 5), generator=torch.Generator().manual_seed(3))
    right = gradients_of(client.tiny_llama(), tokens)
    entwines = dict(client.PLAN)
    for way in ("theirs", "style", "modules"):
        if way == "modules":
            model = modules.make_parallel(client.tiny_llama(), world)
        else:
            client.PLAN.clear()
            client.PLAN.update(entwines if way == "style" else
                               {name: "rowwise" for name in entwines})
            model = client.from_style(client.tiny_llama())
        assert isinstance(model, LlamaForCausalLM)
        got = gradients_of(model, tokens)
        assert got.keys() == right.keys()
        for name, grad in got.items():
            grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
            want = part_of(right[name], grad.shape, world)
            far = (grad - want).abs().max().item()
            assert want.abs().max() > 1e-5 and far < 1e-6, f"{way}, {name}: off by {far}"
        os.write(1, f"{way}: gradients are right\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    rank_main()
