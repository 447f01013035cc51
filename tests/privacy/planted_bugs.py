"""Bugs that would break the guarantee, each planted into a copy of the package to see that some test catches it.

``python -m tests.privacy.planted_bugs`` tries all of them, ``... NAME ...`` those named, ``--list`` names them, and
``--table`` prints the table of docs/planted_bugs.md. A bug counts as caught where every test named beside it fails;
that they all pass without it is tried first. With ``--against attacks/test_step_attack.py`` before the names it is said
which bugs those tests would catch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from tests.privacy.planting import Copy, Planted, Rotten, Verdict, prepare

SAMPLER = (
    Planted(
        name="probability-doubled",
        where="privacy/sampling.py",
        edits=(
            (
                "rate = -math.log1p(-self.sampling_probability)",
                "rate = -math.log1p(-min(2 * self.sampling_probability, 0.999))",
            ),
        ),
        does="records are sampled with twice the stated probability",
        breaks="subsampling hides a record less than the accountant assumes",
        caught_by=(
            "privacy/sampling/test_poisson.py::test_the_probability_comes_from_the_records_stated_and_not_from_those_held",
            "privacy/sampling/test_poisson.py::test_every_record_is_drawn_at_its_rate",
        ),
    ),
    Planted(
        name="probability-of-the-held",
        where="privacy/sampling.py",
        edits=(
            (
                "rate = -math.log1p(-self.sampling_probability)",
                "rate = -math.log1p(-min(self.expected_batch_size / num_records, 0.999))",
            ),
        ),
        does="the probability is the batch size over the number of loaded records, not over the stated number",
        breaks="adding one record changes everybody's sampling probability, which then differs from the charged one",
        caught_by=(
            "privacy/sampling/test_poisson.py::test_the_probability_comes_from_the_records_stated_and_not_from_those_held",
        ),
    ),
    Planted(
        name="part-of-a-record-uncharged",
        where="privacy/sampling.py",
        edits=(
            (
                "return PoissonSampled(sampling_probability=self.sampling_probability, event=released)",
                "probability = max(1, math.floor(self.expected_batch_size)) / self.records\n"
                "        return PoissonSampled(sampling_probability=probability, event=released)",
            ),
        ),
        does="a fractional expected batch size is rounded down in the event",
        breaks="records are sampled more often than is charged",
        caught_by=(
            "privacy/sampling/test_poisson.py::test_a_batch_that_is_no_whole_number_is_drawn_as_often_as_its_event_says",
        ),
    ),
    Planted(
        name="same-draw-every-step",
        where="run/private_run.py",
        edits=(
            (
                "return self._run.draw_indices(self.randomness) if",
                "return self._run.draw_indices(self._run.key.at(0, 0)) if",
            ),
        ),
        does="the sample of the first step is reused at every step",
        breaks="a record in that sample enters every sum, but each step is charged as a fresh sample",
        caught_by=(
            "run/test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",
            "attacks/test_step_attack.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="shuffled-batches",
        where="privacy/sampling.py",
        edits=(
            (
                "        rate = -math.log1p(-self.sampling_probability)\n",
                "        size = max(1, round(self.expected_batch_size))\n"
                '        once = randomness.key.at(0, 0).generator(purpose, "cpu")\n'
                "        order = torch.randperm(num_records, generator=once)\n"
                "        first = randomness.step * size % num_records\n"
                "        return order[first : first + size].sort().values\n"
                "        rate = -math.log1p(-self.sampling_probability)\n",
            ),
        ),
        does="records are shuffled once and cut into batches of fixed size",
        breaks="every record is in exactly one batch per epoch, but the charge is for independent Poisson sampling",
        caught_by=(
            "privacy/sampling/test_poisson.py::test_the_size_of_a_draw_follows_the_binomial_law",
            "privacy/sampling/test_poisson.py::test_steps_are_independent",
        ),
    ),
    Planted(
        name="empty-draw-skipped",
        where="run/loop.py",
        edits=(
            (
                "            clip = state.clip_rule(step.index)\n",
                "            if not len(step.indices):\n"
                "                state.step += 1\n"
                "                continue\n"
                "            clip = state.clip_rule(step.index)\n",
            ),
        ),
        does="a step with an empty sample is skipped, including its noise",
        breaks="unchanged weights reveal that nobody was sampled",
        caught_by=("run/test_loop.py::test_an_empty_draw_still_moves_the_weights_by_noise",),
    ),
    Planted(
        name="draw-cut-to-fit",
        where="run/private_run.py",
        edits=(
            (
                "physical(run.ranks.own(self.indices), size, is_padded",
                "physical(run.ranks.own(self.indices)[: 2 * size], size, is_padded",
            ),
        ),
        does="a sample that is too large for memory is truncated",
        breaks="one record can displace another, so two records change, and inclusion is no longer independent",
        caught_by=("run/test_loop.py::test_a_draw_is_never_cut_to_fit",),
    ),
    Planted(
        name="padding-counted",
        where="privacy/sampling.py",
        edits=(
            (
                "mask = torch.arange(len(padded)) < len(indices)",
                "mask = torch.ones(len(padded), dtype=torch.bool)",
            ),
        ),
        does="the padding of a physical batch is included in the sum",
        breaks="the first record enters nearly every sum, several times, but is charged as if it were sampled",
        caught_by=(
            "privacy/sampling/test_sampling.py::test_the_masked_places_are_the_draw_and_every_batch_has_the_size",
            "run/test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",
        ),
    ),
)

CLIP = (
    Planted(
        name="clip-off",
        where="privacy/clipping.py",
        edits=(
            (
                "gradients.weighted_sum(bound / norms_B.clamp_min(bound))",
                "gradients.weighted_sum(norms_B.new_ones(norms_B.shape))",
            ),
        ),
        does="gradients are not clipped",
        breaks="one record can change the sum by any amount, while the noise only covers the clip norm",
        caught_by=(
            "privacy/clipping/test_rules.py::test_a_long_gradient_is_scaled_to_the_clip_norm",
            "contracts/test_clip_rules.py::test_a_large_record_moves_the_sum_by_nearly_the_sensitivity",
            "attacks/test_step_attack.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="clip-by-another-norm",
        where="privacy/clipping.py",
        edits=(
            (
                "bound = self.sensitivity\n        norms_B = gradients.norms() * (1 + gradients.margin)",
                "bound = self.sensitivity\n"
                "        norms_B = gradients.norms([[name] for name in gradients.names]).amax(1)",
            ),
        ),
        does="the clip uses the norm of the largest parameter instead of the norm of the whole gradient",
        breaks="with m parameters, one record can change the sum by √m times the clip norm",
        caught_by=(
            "contracts/test_clip_rules.py::test_a_large_record_moves_the_sum_by_nearly_the_sensitivity",
            "attacks/test_step_attack.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="not-a-number-passes",
        where="gradients/contributions.py",
        edits=(
            (
                "self._counted_B = mask_B & torch.stack(tuple(self._squared.values())).sum(0).isfinite()",
                "self._counted_B = mask_B",
            ),
        ),
        does="a record with an infinite or NaN gradient is included in the sum",
        breaks="the sum becomes NaN whatever the noise, which reveals the record",
        caught_by=(
            "contracts/test_clip_rules.py::test_a_record_that_is_not_finite_in_one_coordinate_adds_nothing_in_any",
        ),
    ),
    Planted(
        name="question-unclipped",
        where="run/loss_oracle.py",
        edits=(
            (
                "worst.clamp(-energy.loss_clip, energy.loss_clip).sum(), energy.loss_clip",
                "worst.sum(), energy.loss_clip",
            ),
        ),
        does="the losses of a query about a candidate are not clipped",
        breaks="one record can change the answer by any amount, while the noise only covers the clip",
        caught_by=(
            "run/test_loss_oracle.py::test_one_record_moves_the_answer_by_no_more_than_the_noise_is_measured_by",
        ),
    ),
    Planted(
        name="whole-norm-in-each-layer",
        where="privacy/clipping.py",
        edits=(
            (
                "return {layer: clip_norm * (share / whole) for layer, share in shares}",
                "return {layer: clip_norm * share for layer, share in shares}",
            ),
        ),
        does="each of L layers is clipped to C instead of C / √L",
        breaks="one record can change the sum by √L times what the noise covers",
        caught_by=(
            "privacy/clipping/test_rules.py::test_every_layer_is_clipped_to_its_equal_part",
            "contracts/test_clip_rules.py::test_a_large_record_moves_the_sum_by_nearly_the_sensitivity",
        ),
    ),
    Planted(
        name="sensitivity-understated",
        where="gradients/ghost.py",
        edits=(
            (
                "return PrivateSum(values=total, sensitivity=clip.sensitivity)",
                "return PrivateSum(values=total, sensitivity=clip.sensitivity / 2)",
            ),
        ),
        does="the sum reports half of its sensitivity",
        breaks="the noise is scaled from the reported sensitivity and is half of what is charged",
        caught_by=(
            "gradients/test_ghost.py::test_another_clip_rule_gets_a_step_of_its_own",
            "contracts/test_engines.py::test_one_record_moves_a_private_sum_by_the_clip_norm_however_many_views",
            "attacks/test_step_attack.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="coordinates-understated",
        where="privacy/clipping.py",
        edits=(
            (
                "whole = math.hypot(*(float(bound.double().norm()) for bound in copied.values()))",
                "whole = max(float(bound.double().norm()) for bound in copied.values())",
            ),
        ),
        does="per-coordinate clipping reports the sensitivity of its largest tensor only",
        breaks="the other tensors change too, and no noise covers them",
        caught_by=(
            "privacy/clipping/test_per_coordinate.py::test_the_sensitivity_is_the_norm_of_the_bounds_which_are_passed_on",
            "contracts/test_clip_rules.py::test_a_large_record_moves_the_sum_by_nearly_the_sensitivity",
        ),
    ),
    Planted(
        name="views-clipped-one-by-one",
        where="gradients/ghost.py",
        edits=(
            (
                "        mask = self._check_batch(inputs, targets, mask_B)\n"
                "        if not len(mask):\n"
                "            return clip(self.gradients(inputs, targets, mask))\n",
                "        mask = self._check_batch(inputs, targets, mask_B)\n"
                "        if self._views > 1:\n"
                "            alone = GhostEngine(self._model, self._loss_fn, compiled=False)\n"
                "            parts = [\n"
                "                alone.private_sum(clip, each, targets, mask_B)\n"
                "                for each in (inputs[:, view] for view in range(self._views))\n"
                "            ]\n"
                "            values = {name: sum(part.values[name] for part in parts) for name in parts[0].values}\n"
                "            return PrivateSum(values=values, sensitivity=clip.sensitivity)\n",
            ),
        ),
        does="each augmented view of a record is clipped separately, and all are summed",
        breaks="with K views, one record can change the sum by K times the clip norm",
        caught_by=(
            "contracts/test_engines.py::test_one_record_moves_a_private_sum_by_the_clip_norm_however_many_views",
        ),
    ),
    Planted(
        name="random-numbers-shared",
        where="gradients/synthetic.py",
        edits=(("if is_drawn and (not first.dim() or first.shape[0] % _MANY):", "if False:"),),
        does="a random number shared by all records of a batch is treated as one number per record",
        breaks="one record changes which records share a batch, and so their gradients, beyond the clip norm",
        caught_by=(
            "gradients/test_synthetic.py::test_random_numbers_that_records_share_are_found",
            "contracts/test_model_zoo.py::test_a_coin_for_all_records_of_a_batch_does_not_move_other_records",
        ),
    ),
    Planted(
        name="views-clipped-one-by-one-in-full",
        where="gradients/materialised.py",
        edits=(
            (
                "        return reduce(add, map(clip, self.parts(inputs, targets, mask_B)))\n",
                "        if self._views > 1:\n"
                "            alone = MaterialisedEngine(self._model, self._loss_fn)\n"
                "            parts = [\n"
                "                alone.private_sum(clip, each, targets, mask_B)\n"
                "                for each in (inputs[:, view] for view in range(self._views))\n"
                "            ]\n"
                "            values = {name: sum(part.values[name] for part in parts) for name in parts[0].values}\n"
                "            return PrivateSum(values=values, sensitivity=clip.sensitivity, bounds=parts[0].bounds)\n"
                "        return reduce(add, map(clip, self.parts(inputs, targets, mask_B)))\n",
            ),
        ),
        does="the materialised engine clips each augmented view separately",
        breaks="with K views, one record can change the sum by K times the clip norm",
        caught_by=(
            "contracts/test_engines.py::test_one_record_moves_a_private_sum_by_the_clip_norm_however_many_views",
        ),
    ),
)

RECORDS = (
    Planted(
        name="sum-over-records-allowed",
        where="gradients/record_axis_rules.py",
        edits=(("    if axis.dim in along:\n", "    if axis.dim in along and not dims:\n"),),
        does="an operation that reduces over the record axis is accepted as one that keeps records independent",
        breaks="a model that centres its batch is accepted, and one record changes the gradients of all others",
        caught_by=("gradients/test_record_axis.py::test_what_mixes_records_is_not_proven",),
    ),
    Planted(
        name="unknown-operation-allowed",
        where="gradients/record_axis.py",
        edits=(("or (pointwise if op.signature.is_pointwise else without_rule)", "or pointwise"),),
        does="an operation without a rule is treated as elementwise",
        breaks="an operation that mixes records is accepted without having been analysed",
        caught_by=("gradients/test_record_axis.py::test_an_operation_without_a_rule_is_not_proven",),
    ),
    Planted(
        name="batch-size-uncompared",
        where="gradients/record_axis.py",
        edits=(("_refuse_difference(trace, _run(", "(trace, _run("),),
        does="the traced operations are not compared across batch sizes",
        breaks="the batch size may enter every record's gradient, so adding one record changes all of them",
        caught_by=("gradients/test_record_axis.py::test_how_many_records_there_are_must_not_enter_as_a_number",),
    ),
    Planted(
        name="backward-pass-not-followed",
        where="gradients/differentiation.py",
        edits=(("                yield output.site.layer, grads[key]\n", ""),),
        does="only the forward pass is traced",
        breaks="a custom backward pass may pass one record's gradient to another",
        caught_by=("gradients/test_record_axis.py::test_a_backward_pass_that_mixes_is_found_in_the_fast_engine",),
    ),
    Planted(
        name="unproven-run-together",
        where="gradients/ghost.py",
        edits=(("self._together[size] = why is None", "self._together[size] = True"),),
        does="records are batched although their independence is not proven",
        breaks="a record's gradient depends on other records, and clipping does not bound its influence",
        caught_by=("gradients/test_record_axis.py::test_an_engine_gives_what_a_loop_over_records_gives_or_refuses",),
    ),
    Planted(
        name="unproven-accepted-in-a-loop",
        where="gradients/hooked.py",
        edits=(("            self._prove_apart(num_images, inputs)\n", ""),),
        does="a model in a custom loop is checked on two synthetic records only",
        breaks="mixing that starts at a larger batch size is missed",
        caught_by=("gradients/test_record_axis.py::test_the_layer_and_the_operation_that_mix_are_named",),
    ),
    Planted(
        name="parts-of-a-record-alike",
        where="gradients/synthetic.py",
        edits=(("torch.Generator().manual_seed(at)", "torch.Generator().manual_seed(0)"),),
        does="all parts of a synthetic record are identical",
        breaks="a model that compares two parts has zero gradients, and the check compares zeros with zeros",
        caught_by=("gradients/test_synthetic.py::test_no_two_parts_of_an_image_are_alike",),
    ),
)

NOISE = (
    Planted(
        name="noise-halved",
        where="privacy/noise.py",
        edits=(
            (
                " * with_rounding(private.sensitivity)",
                " * with_rounding(private.sensitivity) / 2",
            ),
        ),
        does="the noise is half of what is charged",
        breaks="the true ε is at least about twice the stated one",
        caught_by=(
            "privacy/noise/test_isotropic.py::test_the_noise_has_the_multiplier_times_the_sensitivity_and_no_other_scale",
            "run/test_mechanism.py::test_the_noise_is_the_events_multiplier_times_what_a_neighbour_can_move",
            "attacks/test_step_attack.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="replaced-record-at-half-price",
        where="run/mechanism.py",
        edits=(
            (
                "return self.sampling.sensitivity_factor * self.plan.noise_multiplier_at(planned_step) * factor",
                "return self.plan.noise_multiplier_at(planned_step) * factor",
            ),
        ),
        does="under replace-one, the noise is scaled for a record that is added or removed",
        breaks="replacing a record changes the sum by twice as much",
        caught_by=(
            "run/test_mechanism.py::test_the_noise_is_the_events_multiplier_times_what_a_neighbour_can_move",
            "run/test_mechanism.py::test_a_step_is_charged_as_the_plan_has_it",
        ),
    ),
    Planted(
        name="variance-for-standard-deviation",
        where="privacy/noise.py",
        edits=(
            (
                "torch._foreach_mul_(list(released.values()), noise_std)",
                "torch._foreach_mul_(list(released.values()), noise_std**2)",
            ),
        ),
        does="standard normal noise is multiplied by the variance instead of the standard deviation",
        breaks="below one, as with small clip norms, the variance is less than the standard deviation that is charged",
        caught_by=(
            "privacy/noise/test_isotropic.py::test_the_noise_has_the_multiplier_times_the_sensitivity_and_no_other_scale",
            "attacks/test_step_attack.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="same-noise-for-every-parameter",
        where="privacy/rng.py",
        edits=(
            (
                "parts = drawn.to(device).split_with_sizes([tensor.numel() for tensor in like.values()])",
                "parts = [drawn.to(device)[: tensor.numel()] for tensor in like.values()]",
            ),
        ),
        does="the noise of every parameter starts with the same random numbers",
        breaks="the difference of two parameters has no noise",
        caught_by=(
            "privacy/noise/test_isotropic.py::test_parameters_of_one_shape_have_noise_of_their_own",
            "privacy/test_rng.py::test_normals_of_two_names_are_independent",
        ),
    ),
    Planted(
        name="noise-on-one-parameter",
        where="privacy/noise.py",
        edits=(
            (
                "torch._foreach_mul_(list(released.values()), noise_std)",
                "torch._foreach_mul_(list(released.values()), [noise_std, *[0.0] * (len(released) - 1)])",
            ),
        ),
        does="only the first parameter gets noise",
        breaks="all other parameters are released without noise",
        caught_by=("privacy/noise/test_isotropic.py::test_parameters_of_one_shape_have_noise_of_their_own",),
    ),
    Planted(
        name="choice-noise-halved",
        where="run/loss_oracle.py",
        edits=(
            (
                "scale = sampling.sensitivity_factor * energy.loss_clip / energy.epsilon",
                "scale = sampling.sensitivity_factor * energy.loss_clip / energy.epsilon / 2",
            ),
        ),
        does="the noisy choice of a step size has half of its noise",
        breaks="one choice costs twice the charged ε",
        caught_by=("privacy/test_queries_under_attack.py::test_choices_stay_below_what_is_charged_and_come_close",),
    ),
    Planted(
        name="question-sensitivity-halved",
        where="run/loss_oracle.py",
        edits=(
            (
                "mean.clamp(-energy.loss_clip, energy.loss_clip), 2 * energy.loss_clip",
                "mean.clamp(-energy.loss_clip, energy.loss_clip), energy.loss_clip",
            ),
        ),
        does="the noise of a clipped mean loss covers half of the clipping range",
        breaks="one record can move the mean across the whole range",
        caught_by=(
            "privacy/test_queries_under_attack.py::"
            "test_the_answers_of_a_noisy_test_stay_below_what_is_charged_and_come_close",
        ),
    ),
    Planted(
        name="noise-used-twice",
        where="run/loss_oracle.py",
        edits=(('            purpose="energy",\n', '            purpose="noise",\n'),),
        does="a query about a candidate reuses the noise of the step's gradients",
        breaks="subtracting the two releases removes the noise",
        caught_by=("run/test_loss_oracle.py::test_the_draw_and_the_noise_of_a_question_are_none_of_the_gradients",),
    ),
    Planted(
        name="same-noise-every-step",
        where="run/private_run.py",
        edits=(
            (
                "noise_multiplier=multiplier, randomness=self.randomness, state=noise)",
                "noise_multiplier=multiplier, randomness=self._run.key.at(0, 0), state=noise)",
            ),
        ),
        does="every step reuses the noise of the first step",
        breaks="the difference of two steps has no noise",
        caught_by=("run/test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",),
    ),
    Planted(
        name="same-noise-on-every-rank",
        where="run/sharded.py",
        edits=(
            (
                "return before + width * rows.start, before + width * rows.stop",
                "return before, before + width * len(rows)",
            ),
        ),
        does="with sharded weights, the noise of a parameter starts with the same random numbers on every rank",
        breaks="the difference of two rows has no noise",
        caught_by=("run/test_sharded.py::test_no_number_of_the_noise_is_used_by_two_ranks",),
    ),
    Planted(
        name="noise-of-the-first-rank-alone",
        where="run/sharded.py",
        edits=(
            (
                "        spans = [self.layout.span(name) for name in like]\n",
                "        if self.layout.number:\n"
                "            return {name: torch.zeros_like(value).double() for name, value in like.items()}\n"
                "        spans = [self.layout.span(name) for name in like]\n",
            ),
        ),
        does="with sharded weights, only rank 0 adds noise, as it does with replicated weights",
        breaks="the shards of all other ranks are released without noise",
        caught_by=("run/test_sharded.py::test_a_share_of_a_sum_is_released_with_the_noise_of_the_whole",),
    ),
    Planted(
        name="score-has-the-noise-of-its-step",
        where="run/evaluation.py",
        edits=(('randomness=randomness, purpose="score"', 'randomness=randomness, purpose="noise"'),),
        does="a score on private records reuses the noise of its step's sum",
        breaks="anyone who knows one of the two values can remove the noise from the other",
        caught_by=("run/test_loop.py::test_no_stream_of_random_numbers_is_used_for_two_things",),
    ),
    Planted(
        name="seeds-of-32-bits",
        where="privacy/rng.py",
        edits=(('part).digest(8), "little")', 'part).digest(4), "little")'),),
        does="a GPU generator is seeded with 32 bits",
        breaks="an attacker can try all seeds and subtract the noise",
        caught_by=("privacy/test_rng.py::test_all_64_bits_of_a_gpus_seed_vary",),
    ),
    Planted(
        name="noise-repeats-after-65536-steps",
        where="privacy/rng.py",
        edits=(("self.step, self.attempt, part)", "self.step % 65_536, self.attempt, part)"),),
        does="the random number generator reduces the step to 16 bits",
        breaks="two sums have the same noise, and their difference has none",
        caught_by=(
            "privacy/test_rng.py::test_no_two_steps_and_no_two_attempts_of_the_longest_run_share_a_number",
            "run/test_loop.py::test_every_step_of_a_long_run_has_randomness_of_its_own",
        ),
    ),
    Planted(
        name="two-steps-share-their-noise",
        where="privacy/rng.py",
        edits=(
            (
                "self.step, self.attempt, part)",
                "self.step if self.step < 1000 else self.step // 2 * 2, self.attempt, part)",
            ),
        ),
        does="from step 1000 on, pairs of steps share their random numbers",
        breaks="the difference of the two sums has no noise",
        caught_by=(
            "privacy/test_rng.py::test_no_two_steps_and_no_two_attempts_of_the_longest_run_share_a_number",
            "run/test_loop.py::test_every_step_of_a_long_run_has_randomness_of_its_own",
        ),
    ),
    Planted(
        name="noise-cut-off",
        where="privacy/rng.py",
        edits=(
            (
                "return _box_muller(_uniforms(words))[:length].to(device)",
                "return _box_muller(_uniforms(words))[:length].clamp(-4.5, 4.5).to(device)",
            ),
        ),
        does="the noise is truncated at 4.5 standard deviations",
        breaks="a value further away from a sum than that rules this sum out with certainty",
        caught_by=(
            "privacy/test_rng.py::test_the_far_tails_of_the_normals_are_there",
            "privacy/noise/test_isotropic.py::test_the_far_tails_of_the_noise_are_there",
        ),
    ),
    Planted(
        name="norm-in-the-metrics",
        where="run/loop.py",
        edits=(
            (
                "            released = step.release(state.noise)\n",
                '            self._norm = step.diagnostics()["norm_of_clipped_sum"]\n'
                "            released = step.release(state.noise)\n",
            ),
            (
                'clip_norm = {"clip_norm": clip.sensitivity} if is_public else {}',
                'clip_norm = {"clip_norm": clip.sensitivity * (1 + 1e-8 * self._norm)} if is_public else {}',
            ),
        ),
        does="the last digits of the clipping metrics encode the norm of the sum without noise",
        breaks="a statistic of private records is released without noise",
        caught_by=("run/test_loop.py::test_all_that_a_run_tells_follows_from_what_was_released",),
    ),
)

ACCUMULATION = (
    Planted(
        name="noise-divided-by-parts",
        where="run/mechanism.py",
        edits=(
            (
                "    torch._foreach_add_(list(total.values.values()), [part.values[name] for name in total.values])\n"
                "    return total\n",
                "    torch._foreach_add_(list(total.values.values()), [part.values[name] for name in total.values])\n"
                "    return replace(total, sensitivity=total.sensitivity / 2)\n",
            ),
        ),
        does="the noise is halved with every further physical batch",
        breaks="a record is in one physical batch and changes the sum as much as ever",
        caught_by=(
            "run/test_mechanism.py::test_adding_parts_keeps_the_sensitivity_of_one",
            "run/test_mechanism.py::test_noise_is_added_once_however_many_parts_a_draw_has",
        ),
    ),
    Planted(
        name="running-sum-in-float32",
        where="run/mechanism.py",
        edits=(("value.to(torch.float64, copy=True)", "value.to(torch.float32, copy=True)"),),
        does="physical batches are accumulated in float32",
        breaks="removing one record changes the rounding of all later batches, together by more than the sensitivity",
        caught_by=(
            "run/test_mechanism.py::test_one_record_moves_a_sum_over_many_parts_by_no_more_than_the_sensitivity",
        ),
    ),
    Planted(
        name="positions-summed-in-float32",
        where="gradients/contributions.py",
        edits=(("if positions > 1 and not left.is_cuda:", "if False:"),),
        does="positions of several records are accumulated in float32",
        breaks="positions that cancel within one record change the rounding of other records by up to a clip norm",
        caught_by=("gradients/test_contributions.py::test_positions_that_cancel_hardly_round_what_other_records_add",),
    ),
    Planted(
        name="physical-batches-in-order",
        where="run/mechanism.py",
        edits=(
            (
                "return shuffled(self.sampling.draw(num_records, randomness), randomness)",
                "return self.sampling.draw(num_records, randomness)",
            ),
        ),
        does="physical batches are cut from the sample in record order",
        breaks="removing one record moves all later ones to other batches, where they round differently",
        caught_by=("run/test_mechanism.py::test_a_draw_is_in_an_order_that_its_places_say_nothing_of",),
    ),
    Planted(
        name="no-noise-on-accumulated-parts",
        where="run/private_run.py",
        edits=(
            (
                "        adding = self._run.noise_with(multiplier)\n",
                "        if self._num_added > 1:\n"
                "            return ReleasedSum(values=private.values)\n"
                "        adding = self._run.noise_with(multiplier)\n",
            ),
        ),
        does="a sample that needs several physical batches is released without noise",
        breaks="nothing hides a record of that sample",
        caught_by=(
            "run/test_loop.py::test_how_a_draw_is_portioned_makes_no_difference",
            "run/test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",
        ),
    ),
    Planted(
        name="divided-by-the-drawn-size",
        where="run/loop.py",
        edits=(
            (
                "            is_accepted = self._propose(",
                "            drawn = self._divisor / max(1, len(step.indices))\n"
                "            resized = {name: value * drawn for name, value in released.values.items()}\n"
                "            released = ReleasedSum(values=resized)\n"
                "            is_accepted = self._propose(",
            ),
        ),
        does="the released sum is divided by the actual batch size instead of a constant",
        breaks="one record changes the divisor and so everybody's contribution, which the noise does not cover",
        caught_by=("run/test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",),
    ),
)

RESUME = (
    Planted(
        name="given-back-and-resumed",
        where="run/private_run.py",
        edits=(
            (
                "if paid.is_settled and not (",
                "if not paid.is_settled and not (",
            ),
        ),
        does="a run continues after its reservation was given back",
        breaks="its steps are not charged, and others may have spent the budget",
        caught_by=("training/test_paying.py::test_a_run_whose_reservation_was_given_back_does_not_go_on",),
    ),
    Planted(
        name="interrupted-and-given-back",
        where="run/private_run.py",
        edits=(
            (
                "            folder.remove()\n        folder.close()\n        raise\n    return folder",
                "            folder.remove()\n"
                "        with Budget.open(budget) as account:  # type: ignore[arg-type]\n"
                "            if _reservation(account, folder.ledger.run) is not None:\n"
                "                account.settle(folder.ledger.run, used=NOTHING)\n"
                "        folder.close()\n"
                "        raise\n"
                "    return folder",
            ),
            (
                "paid is None and is_untouched:",
                "is_untouched:\n            if paid is not None:\n                return",
            ),
        ),
        does="a run interrupted at its start gives its reservation back but can still be resumed",
        breaks="none of its steps is charged",
        caught_by=("training/test_planned.py::test_a_run_that_is_interrupted_while_it_begins_is_never_free",),
    ),
    Planted(
        name="reservation-of-a-namesake",
        where="run/private_run.py",
        edits=(
            (
                "if paid is None or paid.run_id != folder.run_id:",
                "if paid is None:",
            ),
        ),
        does="a run uses the reservation of another run with the same name",
        breaks="two runs are trained and one is paid for",
        caught_by=("training/test_paying.py::test_a_reservation_of_another_run_of_the_same_name_pays_for_nothing",),
    ),
    Planted(
        name="search-given-back-and-resumed",
        where="search/paid.py",
        edits=(("if status.charged != entries[run]:", "if status.reserved != entries[run]:"),),
        does="a search continues after its reservation was given back",
        breaks="its trials are not charged",
        caught_by=("search/test_paid.py::test_a_search_whose_reservation_was_given_back_does_not_go_on",),
    ),
    Planted(
        name="attempt-not-renewed",
        where="run/replay.py",
        edits=(
            (
                "number=0 if last is None and is_untouched else RunKey.fresh_attempt(),",
                "number=0,",
            ),
        ),
        does="a run restarted with other code or settings reuses the noise of its first attempt",
        breaks="subtracting the two attempts of a step removes the noise",
        caught_by=(
            "run/test_loop.py::test_nothing_is_drawn_twice_from_one_attempt_by_different_environments",
            "privacy/test_loop_under_attack.py::test_subtracting_two_lives_of_a_step_does_not_take_the_noise_off",
        ),
    ),
    Planted(
        name="environment-ignored",
        where="run/replay.py",
        edits=(
            (
                "if last is not None and last.environment == environment and (",
                "if last is not None and (",
            ),
        ),
        does="a run resumed in an environment with different rounding counts as bit-identical",
        breaks="steps that were charged once release two different sums with the same noise",
        caught_by=(
            "run/test_loop.py::test_resuming_elsewhere_draws_afresh_and_pays_again",
            "run/test_replay.py::test_an_attempt_goes_on_only_where_it_wrote_the_checkpoint_and_nothing_changed",
        ),
    ),
    Planted(
        name="other-records-ignored",
        where="run/folder.py",
        edits=(("        if atomic.read(self.files.fingerprint) != fingerprint(self.key):\n", "        if False:\n"),),
        does="a run can be resumed with other records",
        breaks="the same noise is used on the sums of two data sets, and their difference has none",
        caught_by=("run/test_folder.py::test_another_plan_or_other_records_are_refused_by_name",),
    ),
    Planted(
        name="contents-of-folders-ignored",
        where="data/image_folder.py",
        edits=(("        yield from self.digests(np.arange(len(self)))\n", ""),),
        does="a data folder is identified by file names, sizes and times only",
        breaks="with one file replaced, a resumed run uses the same noise on two sums, and their difference has none",
        caught_by=(
            "data/test_image_folder.py::test_the_identity_follows_what_is_in_a_file_that_looks_as_before",
            "training/test_streamed_training.py::"
            "test_a_run_is_not_resumed_where_a_file_has_other_bytes_of_the_same_size_and_time",
        ),
    ),
    Planted(
        name="attempts-counted",
        where="run/replay.py",
        edits=(("else RunKey.fresh_attempt(),", "else (0 if last is None else last.number) + 1,"),),
        does="attempts are numbered consecutively instead of randomly",
        breaks="two copies of a run folder, resumed with different code, use the same noise on different sums",
        caught_by=("privacy/test_loop_under_attack.py::test_copies_of_a_folder_never_meet_in_an_attempt",),
    ),
    Planted(
        name="noise-of-another-step",
        where="run/replay.py",
        edits=(("return step + self._shift", "return step"),),
        does="a restarted run uses the noise multipliers of the steps it repeats, not of the steps that pay for them",
        breaks="with a noise schedule, the paying steps may have been charged for more noise than was added",
        caught_by=("run/test_loop.py::test_a_run_begun_anew_pays_with_later_steps_of_the_plan_and_has_their_noise",),
    ),
    Planted(
        name="position-lost",
        where="run/private_run.py",
        edits=(
            (
                "        for index in range(state.step, self.end_step):\n",
                "        first = state.step\n        for index in range(state.step, self.end_step):\n",
            ),
            (
                "            yield self.step(index)\n",
                "            step = self.step(index)\n"
                "            step.randomness = self.randomness(index - first)\n"
                "            yield step\n",
            ),
        ),
        does="a resumed run restarts its random numbers from the beginning",
        breaks="the samples and noise of the first steps are reused on other sums",
        caught_by=("run/test_loop.py::test_what_the_slots_have_learnt_survives_a_crash_to_the_bit",),
    ),
    Planted(
        name="charged-after-the-release",
        where="run/private_run.py",
        edits=(
            (
                "            if not self.charger.covers(index):\n",
                "            if False:\n",
            ),
        ),
        does="a step is sampled before it is written to the ledger",
        breaks="a value that leaves the process in between was never charged",
        caught_by=("run/test_loop.py::test_a_step_is_charged_on_the_disk_before_its_records_are_drawn",),
    ),
)

ACCOUNTING = (
    Planted(
        name="first-step-free",
        where="run/replay.py",
        edits=(("return step < self.charged_until", "return step <= self.charged_until"),),
        does="one step counts as charged before it was",
        breaks="the ledger misses one step",
        caught_by=(
            "run/test_loop.py::test_the_plan_is_charged_in_full_and_not_a_step_more",
            "run/test_loop.py::test_a_step_is_charged_on_the_disk_before_its_records_are_drawn",
        ),
    ),
    Planted(
        name="steps-off-by-one",
        where="planning/plan.py",
        edits=(
            (
                "gradients = {self.gradient_event(0): last - first}",
                "gradients = {self.gradient_event(0): max(1, last - first - 1)}",
            ),
        ),
        does="a plan of T steps is counted as T - 1",
        breaks="ε is that of a shorter run",
        caught_by=("planning/test_plan.py::test_the_sampling_probability_is_the_batch_over_the_records_exactly",),
    ),
    Planted(
        name="accepted-only-planned",
        where="planning/plan.py",
        edits=(
            (
                "return self.events(0, self.steps) if self.limit is None else self.limit",
                "return self.events(0, self.stops_at_accepted or self.steps) if self.limit is None else self.limit",
            ),
        ),
        does="a plan counts accepted candidates only, not all that are tried",
        breaks="a rejected candidate also used the records, and its rejection reveals something",
        caught_by=("planning/test_plan.py::test_a_plan_that_stops_at_accepted_is_counted_at_all_of_its_candidates",),
    ),
    Planted(
        name="accepted-only-charged",
        where="run/loop.py",
        edits=(
            (
                "            state.end_step(StepOutcome(",
                "            run.charger.charged_until += not is_accepted\n            state.end_step(StepOutcome(",
            ),
        ),
        does="the charge of a rejected candidate is reused for the next one",
        breaks="candidates are tried for free until one is accepted, which selects among noise draws",
        caught_by=(
            "run/test_loop.py::test_rejected_candidates_leave_weights_and_momentum_as_they_were_and_stay_charged",
        ),
    ),
    Planted(
        name="question-uncharged",
        where="run/loss_oracle.py",
        edits=(
            (
                "        return sampling.event(Gaussian(sampling.sensitivity_factor * energy.noise_multiplier))",
                "        return NOTHING",
            ),
        ),
        does="queries on private records about a candidate are free",
        breaks="the answer depends on the records, and its noise has a cost",
        caught_by=("run/test_loss_oracle.py::test_a_question_is_charged_as_what_it_is",),
    ),
    Planted(
        name="scores-uncharged",
        where="run/replay.py",
        edits=(
            (
                "return sum(map(self.is_scored, range(first, last))) if self._plan.is_scored_privately else 0",
                "return 0",
            ),
        ),
        does="scores on held-out private records are free",
        breaks="each score is a release",
        caught_by=(
            "run/test_loop.py::test_scores_on_private_records_are_charged_with_the_steps_and_repeated_for_free",
        ),
    ),
    Planted(
        name="ledger-overdrawn",
        where="accounting/ledger.py",
        edits=(("        if not _is_allowed(after, self.plan_event, self.adjacency):\n", "        if False:\n"),),
        does="the ledger accepts more than the plan allows",
        breaks="ε was stated for the plan, and nothing else stops a run that exceeds it",
        caught_by=("accounting/test_ledger.py::test_the_last_step_of_the_plan_is_taken_and_one_more_is_refused",),
    ),
    Planted(
        name="wrong-conversion",
        where="accounting/rdp.py",
        edits=(
            (
                "return divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)",
                "return divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / orders",
            ),
        ),
        does="the Rényi conversion divides by the order instead of the order minus one",
        breaks="ε is smaller than the theorem gives, and noise is calibrated to it",
        caught_by=("accounting/test_rdp.py::test_balle20_at_whole_orders_gives_the_reference_values",),
    ),
    Planted(
        name="calibrated-from-outside",
        where="accounting/calibration.py",
        edits=(("    return inside\n\n\ndef _is_done", "    return outside\n\n\ndef _is_done"),),
        does="of the two values around the target, calibration returns the one that exceeds it",
        breaks="the run costs more than the requested ε",
        caught_by=("accounting/test_calibration.py::test_a_real_value_is_found_within_a_thousandth_and_from_inside",),
    ),
    Planted(
        name="estimate-for-a-bound",
        where="accounting/accountant.py",
        edits=(
            (
                "valid = [answer for answer in given if answer.epsilon is not None and not answer.is_estimate]",
                "valid = [answer for answer in given if answer.epsilon is not None]",
            ),
        ),
        does="an approximation that may be below the true ε is used as a bound",
        breaks="the stated ε is not proven",
        caught_by=("accounting/test_accountant.py::test_the_bound_is_the_smallest_valid_answer_and_no_estimate",),
    ),
    Planted(
        name="published-as-proven",
        where="planning/plan.py",
        edits=(
            ("    if not rule.is_broken:\n", "    if True:\n"),
            (
                "broken = [] if is_whole else [Premise(rule.theorem, Standing.BROKEN, because=_NOT_ALL)]",
                "broken = []",
            ),
        ),
        does="a paper's refuted rule is reported as proven",
        breaks="the number is not an upper bound on ε",
        caught_by=("planning/test_plan.py::test_a_broken_rule_gives_a_number_with_its_reason_and_where_it_is_shown",),
    ),
    Planted(
        name="early-end-scored-for-free",
        where="run/loop.py",
        edits=(
            (
                "if scorer is None or not step or (plan is not None and plan.is_scored_privately):",
                "if scorer is None or not step:",
            ),
        ),
        does="a run that ends early is scored on private records once more without a charge",
        breaks="a score is released that nobody paid for",
        caught_by=("run/test_loop.py::test_every_score_on_private_records_is_charged_also_where_a_run_ends_early",),
    ),
    Planted(
        name="mass-beyond-the-window-forgotten",
        where="accounting/composition.py",
        edits=(("lost = self._beyond_window(repeats) + infinite", "lost = infinite"),),
        does="privacy losses above the window of a transform are ignored",
        breaks="ε is too small whenever the window is too narrow",
        caught_by=(
            "accounting/test_composition.py::test_a_window_that_is_too_narrow_makes_epsilon_larger_and_never_smaller",
        ),
    ),
    Planted(
        name="infinite-losses-forgotten",
        where="accounting/composition.py",
        edits=(("lost = self._beyond_window(repeats) + infinite", "lost = self._beyond_window(repeats)"),),
        does="the probability of an infinite privacy loss is not subtracted from δ",
        breaks="ε is too small",
        caught_by=("accounting/test_composition.py::test_masses_that_the_grid_calls_infinitely_lossy_are_counted",),
    ),
    Planted(
        name="shortened-law-forgets",
        where="accounting/composition.py",
        edits=(("law.infinite_mass + float(law.masses[last:].sum())", "law.infinite_mass"),),
        does="the probability cut off from a distribution of rare losses is ignored",
        breaks="ε is too small",
        caught_by=("accounting/test_composition.py::test_masses_that_are_left_out_are_counted_as_lost",),
    ),
    Planted(
        name="total-variation-without-a-root",
        where="accounting/rdp.py",
        edits=(("-np.expm1(-divergences) <= delta**2", "-np.expm1(-divergences) <= delta"),),
        does="a divergence of δ, instead of δ², is treated as a total variation of δ",
        breaks="ε = 0 is reported for distinguishable neighbours",
        caught_by=("accounting/test_rdp.py::test_with_ever_more_noise_epsilon_is_never_below_the_exact_one",),
    ),
    Planted(
        name="selection-among-one",
        where="accounting/rdp.py",
        edits=(("extra = atom.mean * np.array(", "extra = np.array("),),
        does="selecting among a Poisson number of runs is charged without their expected number",
        breaks="the best of many runs costs no more than the best of a few",
        caught_by=("accounting/test_rdp.py::test_selection_agrees_with_dp_accounting",),
    ),
    Planted(
        name="cancelling-differences",
        where="accounting/rdp.py",
        edits=(
            (
                "    found = np.full(largest + 1, -math.inf)\n    found[0] = 0.0\n    log_step",
                "    moments = [math.exp(min(i * (i - 1) * precision / 2, 300)) for i in range(largest + 1)]\n"
                "    signed = [\n"
                "        math.fsum((-1) ** (i + n) * math.comb(n, i) * moments[i] for i in range(n + 1))\n"
                "        for n in range(largest + 1)\n"
                "    ]\n"
                "    return np.log(np.maximum(signed, 1e-300))\n"
                "    found = np.full(largest + 1, -math.inf)\n    found[0] = 0.0\n    log_step",
            ),
        ),
        does="sampling without replacement is counted by alternating sums, which cancel",
        breaks="with much noise, the computed divergence is below the theorem's",
        caught_by=("accounting/test_rdp.py::test_without_replacement_no_divergence_is_below_the_theorem",),
    ),
)

SHAPED = (
    Planted(
        name="shape-misses-a-factor",
        where="privacy/noise.py",
        edits=(
            (
                "scale = noise_multiplier * _norm(ratios, unit=hardest) * _ABOVE",
                "scale = noise_multiplier * hardest * _ABOVE",
            ),
        ),
        does="noise proportional to the bounds of m coordinates lacks the factor √m",
        breaks="each coordinate alone is covered, but not all m together",
        caught_by=(
            "privacy/noise/test_shaped.py::"
            "test_the_noise_of_each_coordinate_is_the_multiplier_times_the_root_of_their_number_times_its_bound",
        ),
    ),
    Planted(
        name="slots-learn-from-raw-sums",
        where="run/loop.py",
        edits=(
            (
                "            released = step.release(state.noise)\n",
                "            raw = ReleasedSum(values=dict(step._whole().values))\n"
                "            released = step.release(state.noise)\n",
            ),
            (
                "state.end_step(StepOutcome(released=released,",
                "state.end_step(StepOutcome(released=raw,",
            ),
        ),
        does="adaptive bounds and noise shapes learn from the sum without noise",
        breaks="the next step's noise reveals this sum",
        caught_by=("run/test_loop.py::test_the_slots_learn_from_what_was_released_and_from_nothing_else",),
    ),
    Planted(
        name="prior-peeks",
        where="privacy/clipping.py",
        edits=(
            (
                "float(state[_LEARNT]) + 1}\n\n"
                "    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:\n"
                "        return state\n",
                "float(state[_LEARNT]) + 1}\n\n"
                "    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:\n"
                "        return self.learn(state, ReleasedSum(values=private.values), divisor=divisor)\n",
            ),
        ),
        does="a prior for released sums also learns from sums without noise",
        breaks="the bounds, and so the noise, reveal the sums",
        caught_by=("privacy/clipping/test_adaptive.py::test_a_prior_from_released_sums_never_looks_at_a_private_one",),
    ),
    Planted(
        name="raw-prior-as-proven",
        where="privacy/clipping.py",
        edits=(
            (
                "    unproven: ClassVar[str | None] = RAW\n",
                "    unproven: ClassVar[str | None] = None\n",
            ),
        ),
        does="a clip that learns from sums without noise does not say so",
        breaks="the step is charged as if it were private",
        caught_by=(
            "privacy/clipping/test_adaptive.py::test_a_raw_prior_tells_neighbours_apart_although_the_same_was_released",
        ),
    ),
)

TWO = "run/test_distributed.py::test_a_run_of_two_processes_is_that_of_one_with_its_noise_once"
RANKS = (
    Planted(
        name="every-rank-sums-the-draw",
        where="run/distributed.py",
        edits=(
            (
                "return indices[self.number :: self.total]",
                "return indices",
            ),
        ),
        does="each of W ranks sums the whole sample instead of its share",
        breaks="a record enters W times and changes the sum W times as much as the noise covers",
        caught_by=(
            "run/test_distributed.py::test_the_shares_of_all_ranks_are_the_draw_and_no_two_have_a_record_in_common",
        ),
    ),
    Planted(
        name="no-noise-on-several-ranks",
        where="run/private_run.py",
        edits=(
            (
                "        adding = self._run.noise_with(multiplier)\n",
                "        if self._run.ranks.total > 1:\n"
                "            return ReleasedSum(values=private.values)\n"
                "        adding = self._run.noise_with(multiplier)\n",
            ),
        ),
        does="with several ranks, the sum is used without noise",
        breaks="nothing hides a record in it",
        caught_by=(TWO,),
    ),
    Planted(
        name="noise-on-every-rank",
        where="run/private_run.py",
        edits=(
            (
                "            return self.ranks.reduce(private)\n",
                "            given = {'planned_step': 0, 'randomness': self.key.at(0, 0)}\n"
                "            noisy = self.planned_mechanism.release(private, {}, **given)\n"
                "            noised = PrivateSum(values=noisy.values, sensitivity=private.sensitivity)\n"
                "            return self.ranks.reduce(noised)\n",
            ),
        ),
        does="every rank adds the noise to its own sum",
        breaks="the noise differs from what is charged: here there is more of it, from the same numbers",
        caught_by=(TWO,),
    ),
    Planted(
        name="one-stream-for-all-ranks",
        where="run/distributed.py",
        edits=(('return f"{name}, rank {self.number}" if self.number else name', "return name"),),
        does="all ranks use the same random numbers for augmentation and dropout",
        breaks="records on two ranks share numbers, so adding a record changes more than its own gradient",
        caught_by=("run/test_distributed.py::test_no_two_ranks_augment_or_drop_by_the_same_numbers",),
    ),
    Planted(
        name="number-of-ranks-ignored",
        where="run/private_run.py",
        edits=(
            (
                'return {**first, "ranks": f"{len(environments)}: {strict_json.dumps(others)}"}',
                "return dict(first)",
            ),
        ),
        does="a run resumed with a different number of ranks counts as bit-identical",
        breaks="sums that round differently get the same noise, which can be subtracted",
        caught_by=("run/test_distributed.py::test_what_is_taken_again_by_another_number_of_ranks_is_charged_again",),
    ),
)

PRIVATE_RUN = (
    Planted(
        name="charged-after-the-noise",
        where="run/private_run.py",
        edits=(
            (
                "        multiplier = self._run.charge(self.index, noise, noise_multiplier=noise_multiplier)\n",
                "        multiplier = noise_multiplier\n"
                "        if self._run._open is None:\n"
                "            planned = self._run.charger.planned(self.index)\n"
                "            multiplier = self._run.planned_mechanism.step_noise(noise, planned_step=planned)\n",
            ),
            (
                "        return adding.release(private, noise_multiplier=multiplier, "
                "randomness=self.randomness, state=noise)\n",
                "        released = adding.release(private, noise_multiplier=multiplier, "
                "randomness=self.randomness, state=noise)\n"
                "        self._run.charge(self.index, noise, noise_multiplier=noise_multiplier)\n"
                "        return released\n",
            ),
        ),
        does="in an external loop, a step is charged after its noise is added",
        breaks="a crash in between leaves a released sum that was never charged",
        caught_by=(
            "run/test_private_run.py::test_a_step_of_another_programs_loop_is_drawn_for_free_and_charged_before_its_noise",
        ),
    ),
    Planted(
        name="border-of-a-block-uncharged",
        where="run/replay.py",
        edits=(
            (
                "        self.charged_until = last\n",
                "        self.charged_until = last + 1\n",
            ),
        ),
        does="the first step of each block counts as charged with the previous block",
        breaks="the ledger misses one step per block",
        caught_by=(
            "run/test_private_run.py::test_steps_are_charged_in_blocks_and_each_before_it_is_drawn",
            "run/test_loop.py::test_the_plan_is_charged_in_full_and_not_a_step_more",
        ),
    ),
    Planted(
        name="step-released-twice",
        where="run/private_run.py",
        edits=(
            (
                "        if self._is_released or self._sum is None:\n",
                "        if self._sum is None:\n",
            ),
            (
                "        self._is_released, self._sum = True, None\n",
                "        self._is_released = True\n",
            ),
            (
                "        if not index > self._last_released:\n",
                "        if False:\n",
            ),
        ),
        does="a step can be released twice",
        breaks="values added in between get the same noise, and the difference of the releases has none",
        caught_by=("run/test_private_run.py::test_a_step_is_released_once_and_takes_nothing_afterwards",),
    ),
    Planted(
        name="added-after-the-release",
        where="run/private_run.py",
        edits=(
            (
                "        if self._is_released:\n"
                '            raise InvalidValue("step", allowed="one that is not released yet',
                '        if False:\n            raise InvalidValue("step", allowed="one that is not released yet',
            ),
        ),
        does="a step accepts further sums after its release",
        breaks="they would be released with noise that is already known",
        caught_by=("run/test_private_run.py::test_a_step_is_released_once_and_takes_nothing_afterwards",),
    ),
    Planted(
        name="two-objects-of-one-step",
        where="run/private_run.py",
        edits=(
            (
                "        if not index > self._last_released:\n",
                "        if False:\n",
            ),
        ),
        does="one process can take the same step of a plan twice",
        breaks="two sums have the same noise and are charged once",
        caught_by=("run/test_private_run.py::test_a_step_is_released_once_and_takes_nothing_afterwards",),
    ),
    Planted(
        name="part-of-a-draw-released",
        where="run/private_run.py",
        edits=(
            (
                "        if self._counts_records and self._num_records != len(self.indices):\n",
                "        if False:\n",
            ),
        ),
        does="a loop that processes other records than those sampled is not detected",
        breaks="the true sampling probability differs from the charged one",
        caught_by=("run/test_private_run.py::test_a_sum_that_is_not_over_the_draw_is_not_released",),
    ),
    Planted(
        name="other-draw-on-every-rank",
        where="run/private_run.py",
        edits=(
            (
                "return self._run.draw_indices(self.randomness) if",
                "return self._run.draw_indices(self._run.key.at(self.index, self._run.ranks.number)) if",
            ),
        ),
        does="each rank draws its own sample and takes its share of that",
        breaks="a record can be in two shares and enters more often than is charged",
        caught_by=(TWO,),
    ),
    Planted(
        name="replay-free-in-another-environment",
        where="run/private_run.py",
        edits=(
            (
                "                environment=joint,\n",
                "                environment={},\n",
            ),
        ),
        does="a run resumed on a different machine counts as bit-identical",
        breaks="different sums get the same noise, which can be subtracted, without a new charge",
        caught_by=("run/test_private_run.py::test_a_replay_is_free_in_the_same_environment_alone",),
    ),
    Planted(
        name="given-back-twice",
        where="run/private_run.py",
        edits=(
            (
                "        if ours.is_settled:\n",
                "        if False:\n",
            ),
        ),
        does="the unused budget is given back each time a run is finished",
        breaks="a budget that is refunded twice pays for more than it has",
        caught_by=("run/test_private_run.py::test_the_end_closes_the_ledger_and_gives_back_what_was_not_used_once",),
    ),
    Planted(
        name="setup-uncharged",
        where="run/replay.py",
        edits=(
            (
                "        if not self._ledger.count(paid_for):\n",
                "        if False:\n",
            ),
        ),
        does="the private setup before the first step is not charged",
        breaks="a noisy statistic of the private records is released for free",
        caught_by=("run/test_private_run.py::test_what_is_done_once_is_charged_before_it_is_done_and_once",),
    ),
    Planted(
        name="step-after-the-end",
        where="run/replay.py",
        edits=(
            (
                "        if self._is_finished:\n",
                "        if False:\n",
            ),
        ),
        does="an open run takes steps after its budget was settled",
        breaks="neither the budget nor the certificate includes these steps",
        caught_by=("run/test_private_run.py::test_a_folder_keeps_what_an_open_run_charged_and_a_block_stays_charged",),
    ),
    Planted(
        name="ledger-left-open",
        where="run/private_run.py",
        edits=(
            (
                "            ledger.finish()\n",
                "            pass\n",
            ),
        ),
        does="a finished run can charge further steps",
        breaks="they are charged after the unused budget was given back",
        caught_by=("run/test_private_run.py::test_a_finished_run_charges_nothing_more",),
    ),
)

CERTIFICATES = (
    Planted(
        name="limit-not-recomputed",
        where="certificates/checking.py",
        edits=(("        if not reached <= budget.epsilon:\n", "        if False:\n"),),
        does="where a certificate's ε is a budget's limit, the event is not checked against that limit",
        breaks="a million steps are certified with the ε of one",
        caught_by=(
            "certificates/test_checking.py::test_where_the_guarantee_is_a_limit_the_event_is_what_was_reserved_within_it",
        ),
    ),
    Planted(
        name="reservation-not-compared",
        where="certificates/checking.py",
        edits=(("    if counted(own) != counted(budget.reserved):\n", "    if False:\n"),),
        does="a certificate can be for an event other than the reserved one",
        breaks="the budget admitted a different event, so its limit says nothing about this one",
        caught_by=(
            "certificates/test_checking.py::test_where_the_guarantee_is_a_limit_the_event_is_what_was_reserved_within_it",
        ),
    ),
    Planted(
        name="certificate-in-the-folder-believed",
        where="certificates/release.py",
        edits=(("        _refuse_another_promise(found, made, files.certificate)\n", "        return found\n"),),
        does="a release trusts the certificate file in the run folder",
        breaks="anyone who writes a smaller ε there gets it onto the model card",
        caught_by=("certificates/test_release.py::test_a_certificate_in_the_folder_is_not_believed",),
    ),
    Planted(
        name="any-delta-certified",
        where="certificates/guarantee.py",
        edits=(("    if delta <= largest_delta(records):\n", "    if True:\n"),),
        does="a certificate is issued for any δ",
        breaks="with δ = 0.1, every tenth record could be published, and ε would not show it",
        caught_by=(
            "certificates/test_checking.py::test_a_delta_that_would_allow_many_records_to_be_published_is_refused",
        ),
    ),
    Planted(
        name="labels-read-from-the-records",
        where="integrations/sklearn.py",
        edits=(
            (
                "        if self.classes is None or (isinstance(self.classes, str) and self.classes != PUBLIC):\n",
                "        if isinstance(self.classes, str) and self.classes != PUBLIC:\n",
            ),
            (
                "        if isinstance(self.classes, str):\n            return np.unique(labels)\n",
                "        if self.classes is None or isinstance(self.classes, str):\n"
                "            return np.unique(labels)\n",
            ),
        ),
        does="the classes of a model are read from its private labels",
        breaks="a label that only one person has becomes an output of the model, without noise",
        caught_by=(
            "integrations/test_sklearn.py::test_what_would_be_read_from_private_data_must_be_stated_or_said_to_be_public",
        ),
    ),
    Planted(
        name="search-certified-as-fixed",
        where="training/earlier_fits.py",
        edits=(("        earlier.settings != fit.settings\n", "        False\n"),),
        does="the final fit of a search is certified as if its settings had been fixed in advance",
        breaks="the winning settings depend on the records, and the earlier fits cost as much each",
        caught_by=(
            "training/test_earlier_fits.py::test_a_loop_over_settings_ends_without_a_certificate",
            "integrations/test_sklearn.py::test_what_a_grid_search_chooses_has_no_certificate",
        ),
    ),
)

OPACUS = "integrations/opacus"
INTEGRATIONS = (
    Planted(
        name="mixing-on-the-second-axis-unseen",
        where=f"{OPACUS}/grad_sample.py",
        edits=(("return transpose_outputs(outputs, more, num_positions=longest)", "return outputs"),),
        does="with batch_first=False, outputs are not checked for mixing along the second axis",
        breaks="a record's loss depends on other records after the last layer, where clipping does not bound it",
        caught_by=(f"{OPACUS}/test_grad_sample.py::test_records_that_meet_on_the_second_axis_are_refused",),
    ),
    Planted(
        name="second-optimizer-uncharged",
        where=f"{OPACUS}/optimizers.py",
        edits=(("        if self._engine.is_counted:", "        if False:"),),
        does="a manually built optimizer steps on a model whose engine counts its own optimizer only",
        breaks="its steps are not charged, and ε covers the other steps only",
        caught_by=(f"{OPACUS}/test_optimizers.py::test_none_is_built_by_hand_over_a_model_whose_steps_are_counted",),
    ),
    Planted(
        name="grad-sampler-sees-the-batch",
        where=f"{OPACUS}/grad_sample.py",
        edits=(
            (
                "[function(layer, [inputs], grads) for inputs, grads in zip(*views, strict=True)]",
                "[function(layer, [site.inputs.flatten(0, 1)], site.output_grads.flatten(0, 1)) for _ in range(1)]",
            ),
        ),
        does="a custom grad sampler receives all records at once",
        breaks="what it returns for one record may depend on all of them, and clipping does not bound that",
        caught_by=(f"{OPACUS}/test_grad_sample.py::test_a_grad_sampler_that_mixes_records_cannot",),
    ),
)

EVERY = {
    "Sampler": SAMPLER,
    "Clip": CLIP,
    "Records": RECORDS,
    "Noise": NOISE,
    "Accumulation": ACCUMULATION,
    "The private run": PRIVATE_RUN,
    "Ranks": RANKS,
    "Resume": RESUME,
    "Accounting": ACCOUNTING,
    "Shaped noise": SHAPED,
    "Certificates": CERTIFICATES,
    "Integrations": INTEGRATIONS,
}
BUGS = {bug.name: bug for bugs in EVERY.values() for bug in bugs}


def table() -> str:
    """Every bug with the tests that catch it, as Markdown."""
    rows = ["| planted | what it does | why that breaks privacy | caught by |", "|---|---|---|---|"]
    for group, bugs in EVERY.items():
        rows.append(f"| **{group}** | | | |")
        rows += [f"| `{bug.name}`<br>in `{bug.where}` | {bug.does} | {bug.breaks} | {_tests(bug)} |" for bug in bugs]
    return "\n".join(rows) + "\n"


def _tests(bug: Planted) -> str:
    return "<br>".join(f"`{test}`" for test in bug.caught_by)


def try_all(names: Iterable[str]) -> bool:
    """Try the bugs and say how each went; whether all were caught, by every test that is said to catch them."""
    bugs = [BUGS[name] for name in names]
    prepare()
    with Copy.made() as copy:
        before = time.monotonic()
        passing = copy.run({test for bug in bugs for test in bug.caught_by}, keeps_bytecode=True)
        if passing.failed or passing.trouble:
            _say("without any bug", f"FAILED {' '.join(sorted(passing.failed))} {passing.trouble}", since=before)
            return False
        _say("without any bug", f"{len(passing.passed)} tests pass", since=before)
        missed = [bug for bug in bugs if not _is_caught(copy, bug)]
        return not missed


def say_which(tests: str, names: Iterable[str]) -> bool:
    """Say which tests of a file, or which one of them, fail with each bug; whether they can be tried at all."""
    prepare()
    with Copy.made() as copy:
        passing = copy.run([tests], keeps_bytecode=True)
        if passing.failed or passing.trouble:
            sys.stderr.write(f"without any bug: {' '.join(sorted(passing.failed))} {passing.trouble}\n")
            return False
        for name in names:
            before = time.monotonic()
            verdict = copy.tried(BUGS[name], [tests])
            _say(name, verdict.trouble or " ".join(sorted(verdict.failed)) or "not caught", since=before)
    return True


def _is_caught(copy: Copy, bug: Planted) -> bool:
    before = time.monotonic()
    verdict = copy.tried(bug)
    _say(bug.name, _in_words(bug, verdict), since=before)
    return verdict.failed == set(bug.caught_by) and not verdict.trouble


def _in_words(bug: Planted, verdict: Verdict) -> str:
    if verdict.trouble:
        return f"NO TRY: {verdict.trouble}"
    slept = sorted(set(bug.caught_by) - verdict.failed)
    if not verdict.failed:
        return f"NOT CAUGHT by {' '.join(slept)}"
    caught = f"caught by {' '.join(test.rpartition('::')[2] for test in bug.caught_by if test in verdict.failed)}"
    return f"{caught}, but NOT by {' '.join(slept)}" if slept else caught


def _say(what: str, words: str, *, since: float) -> None:
    sys.stdout.write(f"{what}: {words} ({time.monotonic() - since:.1f} s)\n")
    sys.stdout.flush()


def main(words: Sequence[str]) -> int:
    """The script; its exit status is 1 where a bug was not caught."""
    if list(words) == ["--table"]:
        sys.stdout.write(table())
        return 0
    if list(words) == ["--list"]:
        sys.stdout.write("".join(f"{bug.name}: {bug.does}\n" for bug in BUGS.values()))
        return 0
    against, words = (words[1], words[2:]) if words[:1] == ["--against"] and len(words) > 1 else (None, words)
    unknown = sorted(set(words) - set(BUGS))
    if unknown:
        sys.stderr.write(f"no such bug: {', '.join(unknown)}; there are {', '.join(BUGS)}\n")
        return 2
    try:
        is_well = try_all(words or BUGS) if against is None else say_which(against, words or BUGS)
        return 0 if is_well else 1
    except Rotten as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
