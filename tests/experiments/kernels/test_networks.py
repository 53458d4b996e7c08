from dataclasses import replace

import numpy as np
import torch

from experiments.fitting.kernels.networks import (
    TrainingPlan,
    fit_ordered,
    fit_steps,
    one_cycle,
)

PLAN = TrainingPlan(hidden=16, steps=300, batch=128, learning_rate=3e-2, spread_hidden=8)


def rows() -> tuple[np.ndarray, np.ndarray]:
    chooser = np.random.default_rng(0)
    features = chooser.uniform(0, 3, (1200, 2))
    # Time is the physics times a step at 1.5 of the second feature, with 3 % of noise.
    log_time = features[:, 0] + 0.4 * (features[:, 1] > 1.5) + chooser.normal(0, 0.03, 1200)
    return features, log_time


def test_it_learns_a_step_and_how_sure_it_is():
    features, log_time = rows()
    log_ratio, sigma, _ = fit_ordered(features, log_time, PLAN).apply(features)
    error = log_time - features[:, 0] - log_ratio
    assert np.mean(np.abs(error)) < 0.05
    inside = np.abs(error) < 1.645 * sigma
    assert 0.8 < inside.mean() < 0.98


def test_a_free_correction_learns_small_steps_in_both_directions():
    features, _ = rows()
    # Plain corrections end at 0.03.
    wanted = np.where(features[:, 1] > 1.5, 0.02, -0.02)
    log_ratio = fit_steps(features, wanted, PLAN).log_ratio(features)
    assert np.mean(np.abs(log_ratio - wanted)) < 0.01


def test_it_cannot_learn_to_fall():
    features, log_time = rows()
    fitted = fit_ordered(features, 2 * features[:, 0] - log_time, PLAN)
    path = np.stack([np.full(50, 1.0), np.linspace(0, 3, 50)], axis=1)
    assert np.all(np.diff(fitted.apply(path)[0]) >= 0)


def test_the_same_rows_give_the_same_correction():
    features, log_time = rows()
    short = replace(PLAN, steps=30)
    first, second = (fit_ordered(features, log_time, short) for _ in range(2))
    assert np.array_equal(first.order.first, second.order.first)


def test_one_cycle_is_that_of_torch():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PLAN.learning_rate, total_steps=300)
    for step in range(300):
        group = optimizer.param_groups[0]
        assert one_cycle(step, PLAN) == (group["lr"], group["betas"][0])
        optimizer.step()
        if step < 299:
            schedule.step()
