"""Speed and memory of the information estimators, side by side with straightforward implementations.

python benchmarks/bench_information.py            # about two minutes; writes results/benchmarks/information.json
python benchmarks/bench_information.py --quick    # small sizes, some seconds; writes only with --out

"Straightforward" recomputes everything for each candidate set S ∪ {j}: all pairwise distances of the samples (the
mixture estimator), or the covariance and its solution (the Gaussian one). It is timed on candidate sets of some
sizes, in turn with ours and on the same data, and its time for a whole trace is the interpolated sum over all steps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pamerge.information import Estimator, Gaussian, Mixture, greedy, label_codes, trace
from pamerge.information.mixture import MixtureState

OUT = Path(__file__).parent.parent / "results" / "benchmarks" / "information.json"
MIB = 2**20


def layer(samples: int, neurons: int, labels: int = 20, values: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    common = torch.randn(samples, max(neurons // 4, labels), generator=rng)
    x = common @ torch.randn(common.shape[1], neurons * values, generator=rng) / math.sqrt(common.shape[1])
    x = (x + 0.3 * torch.randn(x.shape, generator=rng)).relu().reshape(samples, neurons, values)
    y = common[:, :labels] + torch.randn(samples, labels, generator=rng) > 0.5
    return x, y.float()


def seconds(function: Callable[[], object], repeats: int = 1) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def straightforward_mixture(values: Tensor, codes: Tensor, variance: float) -> float:
    kernel = torch.exp(torch.cdist(values, values) ** 2 / (-2 * variance))
    classes = torch.cat([codes, 1 - codes], 1).to(values.dtype)
    means = kernel @ classes / classes.sum(0)
    own = torch.where(codes == 1, means[:, : codes.shape[1]], means[:, codes.shape[1] :])
    return float((own / kernel.mean(1, keepdim=True)).log2().mean(0).sum())


def straightforward_gaussian(values: Tensor, y: Tensor, noise: float) -> float:
    joint = torch.cov(torch.cat([values, y.double()], 1).T)
    p = values.shape[1]
    xx, xy = joint[:p, :p] + noise * torch.eye(p, dtype=joint.dtype), joint[:p, p:]
    explained = (xy * torch.linalg.solve(xx, xy)).sum(0) / joint.diagonal()[p:]
    return -0.5 * float((1 - explained).log2().sum())


def whole_trace(times: dict[int, float], neurons: int) -> float:
    """Interpolated time of all candidate sets of a trace: neurons − p + 1 sets of each size p."""
    each = np.interp(range(1, neurons + 1), list(times), list(times.values()))
    return float(sum((neurons - place) * time for place, time in enumerate(each)))


def compare(neurons: int, samples: int, repeats: int) -> list[dict[str, object]]:
    x, y = layer(samples, neurons)
    codes, flat = label_codes(y), x.flatten(1)
    collector = Mixture(samples=samples).collector()
    collector.add(x, y)
    (state,) = collector.states()
    scaled = (flat.double() - flat.double().mean(0)) / math.sqrt(state.variance)
    noise = 1e-2 * float(flat.double().var(0).mean())
    check(x, y, scaled, codes, noise)
    single, double, wide = scaled.float(), scaled, flat.double()
    names = ("float32", "float64", "Gaussian", "Mixture")
    times: dict[str, dict[int, float]] = {name: {} for name in names}
    traces = []
    sizes = sorted({1, 2, *(max(1, neurons * k // 8) for k in range(1, 9))})
    for size in range(1, neurons + 1):
        if size in sizes:  # all contenders in turn, so that a busy machine slows down all of them
            tries: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(repeats):
                values = {"float32": single[:, :size], "float64": double[:, :size]}
                for name, chosen in values.items():
                    call = partial(straightforward_mixture, chosen, codes, state.bandwidth)
                    tries[name].append(seconds(call, 3))
                tries["Gaussian"].append(seconds(partial(straightforward_gaussian, wide[:, :size], y, noise), 3))
                tries["Mixture"].append(seconds(state.candidates))
                traces.append(seconds(partial(trace, x, y, Gaussian())))
            for name in names:
                times[name][size] = statistics.median(tries[name])
        start = time.perf_counter()
        state.add(size - 1)
        if size in sizes:  # part of a step too
            times["Mixture"][size] += time.perf_counter() - start
    total = {name: whole_trace(times[name], neurons) for name in names if name != "Mixture"}
    total["Mixture"] = float(np.interp(range(1, neurons + 1), sizes, list(times["Mixture"].values())).sum())
    gaussian = statistics.median(traces)
    where = f"whole trace, {neurons} candidates, N = {samples}, {y.shape[1]} labels"
    note = "interpolated from some steps"
    rows = [
        row(f"straightforward mixture, float32, {where}", total["float32"], "s", note),
        row(f"straightforward mixture, float64, {where}", total["float64"], "s", note),
        row(f"straightforward Gaussian, float64, {where}", total["Gaussian"], "s", note),
        row(f"Mixture, {where}", total["Mixture"], "s", note),
        row(f"Gaussian, {where}", gaussian, "s"),
    ]
    for name in ("float32", "float64"):
        against = f"against straightforward mixture, {name}"
        rows.append(row(f"Mixture {against}", total[name] / total["Mixture"], "x", "target 5"))
        rows.append(row(f"Gaussian {against}", total[name] / gaussian, "x", "target 1000"))
    rows.append(row("Gaussian against straightforward Gaussian, float64", total["Gaussian"] / gaussian, "x"))
    exact = straightforward_mixture(double, codes, state.bandwidth)
    error = abs(straightforward_mixture(single, codes, state.bandwidth) - exact)
    rows.append(row("error of straightforward mixture, float32, whole layer", error, "bits"))
    return rows


def check(x: Tensor, y: Tensor, scaled: Tensor, codes: Tensor, noise: float) -> None:
    """What is compared must be the same numbers."""
    estimators: dict[str, Estimator] = {"mixture": Mixture(samples=len(x)), "gaussian": Gaussian()}
    for name, estimator in estimators.items():
        collector = estimator.collector()
        collector.add(x, y)
        (state,) = collector.states()
        for neuron in range(5):
            state.add(neuron)
        found = float(state.candidates()[5])
        if isinstance(state, MixtureState):
            expected = straightforward_mixture(scaled[:, :6], codes, state.bandwidth)
        else:
            expected = straightforward_gaussian(x.flatten(1)[:, :6].double(), y, noise)
        if abs(found - expected) > 1e-6:
            raise SystemExit(f"{name}: {found} differs from the straightforward {expected}")


def growth(quick: bool) -> list[dict[str, object]]:
    rows = []
    for neurons in (64, 128, 256) if quick else (128, 256, 512, 1024, 2048):
        x, y = layer(2 * neurons if quick else max(2000, 2 * neurons), neurons)
        rows.append(row(f"Gaussian, greedy, {neurons} neurons, 20 labels", greedy_seconds(x, y), "s"))
    neurons = 128 if quick else 1024
    for samples in (2 * neurons, 4 * neurons, 8 * neurons):
        x, y = layer(samples, neurons)
        collector = Gaussian().collector()
        rows.append(
            row(f"Gaussian, moments, {neurons} neurons, N = {samples}", seconds(partial(collector.add, x, y)), "s")
        )
    neurons = 64 if quick else 256
    for tasks in (2, 3, 5):
        x, y = layer(4000, neurons)
        same = {f"t{k}": y for k in range(tasks - 1)}
        apart = {name: y.clone() for name in same}
        for k, labels in enumerate(apart.values()):
            labels[k::tasks] = torch.nan
        where = f"K = {tasks}, {neurons} neurons, 20 labels a task"
        rows.append(row(f"Gaussian, greedy, {where}, same samples", greedy_seconds(x, same), "s"))
        rows.append(row(f"Gaussian, greedy, {where}, a data set each", greedy_seconds(x, apart), "s"))
    for values in (1, 2, 4):
        x, y = layer(4 * neurons * values, neurons, values=values)
        rows.append(row(f"Gaussian, greedy, {neurons} neurons of {values} values", greedy_seconds(x, y), "s"))
    return rows


def greedy_seconds(x: Tensor, labels: Tensor | dict[str, Tensor]) -> float:
    collector = Gaussian().collector()
    collector.add(x, labels)
    return seconds(lambda: greedy(collector.states()), 3)


def mixture_memory(neurons: int, samples: int) -> list[dict[str, object]]:
    peaks = []
    for size in (0, neurons):
        command = [sys.executable, __file__, "--measure-memory", str(size), str(samples)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    where = f"{neurons} candidates, N = {samples}"
    return [
        row(f"Mixture, peak memory, {where}", peaks[1] / MIB, "MiB", "two steps; target 2048"),
        row("of which imports", peaks[0] / MIB, "MiB"),
    ]


def measure_memory(neurons: int, samples: int) -> None:
    if neurons:
        collector = Mixture(samples=samples).collector()
        collector.add(*layer(samples, neurons))
        (state,) = collector.states()
        for _ in range(2):
            state.add(int(state.candidates().argmin()))
    print(peak_memory())


def peak_memory() -> int:
    """Bytes. What getrusage tells on Linux includes the parent's peak, from before the exec; VmHWM does not."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def row(name: str, value: float, unit: str, note: str = "") -> dict[str, object]:
    shown = {"name": name, "value": value, "unit": unit, "note": note}
    print(f"{name:<75} {value:>12.4g} {unit:<4} {note}", flush=True)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, for a smoke test")
    parser.add_argument("--out", type=Path, help=f"default: {OUT}, or none with --quick")
    parser.add_argument("--measure-memory", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measure_memory:
        measure_memory(*arguments.measure_memory)
        return
    quick = arguments.quick
    rows = compare(48, 120, 1) if quick else compare(256, 500, 5)
    rows += growth(quick)
    rows += mixture_memory(64, 200) if quick else mixture_memory(1024, 1000)
    out = arguments.out or (None if quick else OUT)
    if out:
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "machine": platform.processor() or platform.machine(),
            "threads": 1,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"environment": environment, "quick": quick, "rows": rows}, indent=1) + "\n")
        temporary.replace(out)


if __name__ == "__main__":
    main()
