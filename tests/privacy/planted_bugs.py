"""Bugs that would break the guarantee, each planted into a copy of the package to see that some test catches it.

``python -m tests.privacy.planted_bugs`` tries all of them, ``... NAME ...`` those named, ``--list`` names them, and
``--table`` prints the table of docs/planted_bugs.md. A bug counts as caught where every test named beside it fails;
that they all pass without it is tried first. With ``--against games/test_step_game.py`` before the names it is said
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
        where="sampling/poisson.py",
        edits=(
            (
                "rate = -math.log1p(-self.sampling_probability)",
                "rate = -math.log1p(-min(2 * self.sampling_probability, 0.999))",
            ),
        ),
        does="every record is drawn twice as often as the event says",
        breaks="hiding among those not drawn is half of what is charged",
        caught_by=(
            "sampling/test_poisson.py::test_the_probability_comes_from_the_records_stated_and_not_from_those_held",
            "sampling/test_poisson.py::test_every_record_is_drawn_at_its_rate",
        ),
    ),
    Planted(
        name="probability-of-the-held",
        where="sampling/poisson.py",
        edits=(
            (
                "rate = -math.log1p(-self.sampling_probability)",
                "rate = -math.log1p(-min(self.expected_batch_size / num_held, 0.999))",
            ),
        ),
        does="the probability is the batch over the number of records held, not over the number stated",
        breaks="one record more or less changes the probability of all others, and the one charged is not the one used",
        caught_by=(
            "sampling/test_poisson.py::test_the_probability_comes_from_the_records_stated_and_not_from_those_held",
        ),
    ),
    Planted(
        name="part-of-a-record-uncharged",
        where="sampling/poisson.py",
        edits=(
            (
                "return PoissonSampled(sampling_probability=self.sampling_probability, event=released)",
                "probability = max(1, math.floor(self.expected_batch_size)) / self.records\n"
                "        return PoissonSampled(sampling_probability=probability, event=released)",
            ),
        ),
        does="an expected batch that is no whole number is charged as the whole number below",
        breaks="records are drawn more often than is charged",
        caught_by=(
            "sampling/test_poisson.py::test_a_batch_that_is_no_whole_number_is_drawn_as_often_as_its_event_says",
        ),
    ),
    Planted(
        name="same-draw-every-step",
        where="loop.py",
        edits=(
            (
                "places = mechanism.draw(len(training.private), randomness)",
                "places = mechanism.draw(len(training.private), self.folder.key.at(0, 0))",
            ),
        ),
        does="the draw of the first step is used at every step",
        breaks="who was drawn once is in every sum: nobody hides in the other steps, as is charged",
        caught_by=(
            "test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",
            "games/test_step_game.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="shuffled-batches",
        where="sampling/poisson.py",
        edits=(
            (
                "        rate = -math.log1p(-self.sampling_probability)\n",
                "        size = max(1, round(self.expected_batch_size))\n"
                '        once = randomness.key.at(0, 0).generator(purpose, "cpu")\n'
                "        order = torch.randperm(num_held, generator=once)\n"
                "        first = randomness.step * size % num_held\n"
                "        return order[first : first + size].sort().values\n"
                "        rate = -math.log1p(-self.sampling_probability)\n",
            ),
        ),
        does="records are shuffled once and taken in batches of one size",
        breaks="everybody is in exactly one batch of each epoch: no coin hides that, and it is charged as if one did",
        caught_by=(
            "sampling/test_poisson.py::test_the_size_of_a_draw_follows_the_binomial_law",
            "sampling/test_poisson.py::test_steps_are_independent",
        ),
    ),
    Planted(
        name="empty-draw-skipped",
        where="loop.py",
        edits=(
            (
                "            private = added(self._private_parts(places, trainee.clip_rule(step), randomness))\n",
                "            if not len(places):\n"
                "                trainee.step += 1\n"
                "                continue\n"
                "            private = added(self._private_parts(places, trainee.clip_rule(step), randomness))\n",
            ),
        ),
        does="a step that drew nobody is left out, noise and all",
        breaks="weights that did not move say for certain that nobody was drawn",
        caught_by=("test_loop.py::test_an_empty_draw_still_moves_the_weights_by_noise",),
    ),
    Planted(
        name="draw-cut-to-fit",
        where="loop.py",
        edits=(
            (
                "places = mechanism.draw(len(training.private), randomness)",
                "places = mechanism.draw(len(training.private), randomness)[: 2 * training.physical_batch]",
            ),
        ),
        does="a draw that is larger than memory likes loses its end",
        breaks="one record pushes another out, so that two move and not one; and the coins are no longer independent",
        caught_by=("test_loop.py::test_a_draw_is_never_cut_to_fit",),
    ),
    Planted(
        name="padding-counted",
        where="sampling/physical.py",
        edits=(
            (
                "mask = torch.arange(len(padded)) < len(places)",
                "mask = torch.ones(len(padded), dtype=torch.bool)",
            ),
        ),
        does="the records that fill up a physical batch are summed with those that were drawn",
        breaks="the first record is in nearly every sum, several times, and was charged as if a coin decided",
        caught_by=(
            "sampling/test_physical.py::test_the_masked_places_are_the_draw_and_every_batch_has_the_size",
            "test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",
        ),
    ),
)

CLIP = (
    Planted(
        name="clip-off",
        where="clipping/flat.py",
        edits=(
            (
                "gradients.weighted_sum(bound / norms_B.clamp_min(bound))",
                "gradients.weighted_sum(norms_B.new_ones(norms_B.shape))",
            ),
        ),
        does="gradients are summed as they are",
        breaks="one record can move the sum by any amount, and the noise covers the clip norm",
        caught_by=(
            "clipping/test_flat.py::test_a_long_gradient_is_scaled_to_the_clip_norm",
            "contracts/test_clip_rules.py::test_a_large_record_moves_the_sum_by_nearly_the_sensitivity",
            "games/test_step_game.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="clip-by-another-norm",
        where="clipping/flat.py",
        edits=(
            (
                "norms_B = gradients.norms() * (1 + gradients.margin)",
                "norms_B = gradients.norms([[name] for name in gradients.names]).amax(1)",
            ),
        ),
        does="a record is scaled by the norm of its largest parameter, not by that of its whole gradient",
        breaks="with m parameters, one record can move the sum by √m times the clip norm",
        caught_by=(
            "contracts/test_clip_rules.py::test_a_large_record_moves_the_sum_by_nearly_the_sensitivity",
            "games/test_step_game.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="not-a-number-passes",
        where="gradients/contributed.py",
        edits=(
            (
                "self._counted_B = mask_B & torch.stack(tuple(self._squared.values())).sum(0).isfinite()",
                "self._counted_B = mask_B",
            ),
        ),
        does="a record whose gradient is infinite, or not a number, is summed with the others",
        breaks="the whole sum is then not a number, whatever the noise: one record's presence is plain to see",
        caught_by=(
            "contracts/test_clip_rules.py::test_a_record_that_is_not_finite_in_one_coordinate_adds_nothing_in_any",
        ),
    ),
    Planted(
        name="question-unclipped",
        where="asking.py",
        edits=(
            (
                "worst.clamp(-energy.loss_clip, energy.loss_clip).sum(), energy.loss_clip",
                "worst.sum(), energy.loss_clip",
            ),
        ),
        does="the losses in a question about a candidate are summed as they are",
        breaks="one record can move the answer by any amount, and the noise covers the clip",
        caught_by=("test_asking.py::test_one_record_moves_the_answer_by_no_more_than_the_noise_is_measured_by",),
    ),
    Planted(
        name="whole-norm-in-each-layer",
        where="clipping/per_layer.py",
        edits=(
            (
                "return {layer: clip_norm * (share / whole) for layer, share in shares}",
                "return {layer: clip_norm * share for layer, share in shares}",
            ),
        ),
        does="each of L layers may have the whole clip norm C, not C / √L",
        breaks="one record can move the sum by √L times what the noise covers",
        caught_by=(
            "clipping/test_per_layer.py::test_every_layer_is_clipped_to_its_equal_part",
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
        does="the sum states half of what a record can do to it",
        breaks="the noise is scaled from that statement, and is half of what is charged",
        caught_by=(
            "gradients/test_ghost.py::test_another_clip_rule_gets_a_step_of_its_own",
            "contracts/test_engines.py::test_one_record_moves_a_private_sum_by_the_clip_norm_however_many_views",
            "games/test_step_game.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="coordinates-understated",
        where="clipping/per_coordinate.py",
        edits=(
            (
                "whole = math.hypot(*(float(bound.double().norm()) for bound in copied.values()))",
                "whole = max(float(bound.double().norm()) for bound in copied.values())",
            ),
        ),
        does="the sensitivity of a clip of coordinates is that of its largest tensor alone",
        breaks="the others move as well, and no noise was scaled for them",
        caught_by=(
            "clipping/test_per_coordinate.py::test_the_sensitivity_is_the_norm_of_the_bounds_which_are_passed_on",
            "contracts/test_clip_rules.py::test_a_large_record_moves_the_sum_by_nearly_the_sensitivity",
        ),
    ),
    Planted(
        name="views-clipped-one-by-one",
        where="gradients/ghost.py",
        edits=(
            (
                "        arguments = self._checked(inputs, targets, mask_B)\n"
                "        if not arguments[2].shape[0]:\n"
                "            return clip(self.gradients(inputs, targets, mask_B))\n",
                "        arguments = self._checked(inputs, targets, mask_B)\n"
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
        does="each augmented view of a record is clipped by itself, and all are added",
        breaks="with K views, one record can move the sum by K times the clip norm",
        caught_by=(
            "contracts/test_engines.py::test_one_record_moves_a_private_sum_by_the_clip_norm_however_many_views",
            "gradients/test_ghost.py::test_physical_batches_of_any_size_give_the_same_sum",
        ),
    ),
    Planted(
        name="random-numbers-shared",
        where="gradients/mixing.py",
        edits=(("if is_drawn and (not first.dim() or first.shape[0] % _MANY):", "if False:"),),
        does="a random number that decides for all records that are run together is taken for one of each record",
        breaks="one record more or less changes who is run with whom, and so what the others add, beyond the clip norm",
        caught_by=(
            "gradients/test_mixing.py::test_random_numbers_that_records_share_are_found",
            "contracts/test_model_zoo.py::test_a_coin_for_all_records_of_a_batch_does_not_move_other_records",
        ),
    ),
    Planted(
        name="views-clipped-one-by-one-in-full",
        where="gradients/materialised.py",
        edits=(
            (
                "        return clip(self.gradients(inputs, targets, mask_B))\n",
                "        if self._views > 1:\n"
                "            alone = MaterialisedEngine(self._model, self._loss_fn)\n"
                "            parts = [\n"
                "                alone.private_sum(clip, each, targets, mask_B)\n"
                "                for each in (inputs[:, view] for view in range(self._views))\n"
                "            ]\n"
                "            values = {name: sum(part.values[name] for part in parts) for name in parts[0].values}\n"
                "            return PrivateSum(values=values, sensitivity=clip.sensitivity, bounds=parts[0].bounds)\n"
                "        return clip(self.gradients(inputs, targets, mask_B))\n",
            ),
        ),
        does="the same in the engine that holds gradients in full",
        breaks="with K views, one record can move the sum by K times the clip norm",
        caught_by=(
            "contracts/test_engines.py::test_one_record_moves_a_private_sum_by_the_clip_norm_however_many_views",
        ),
    ),
)

RECORDS = (
    Planted(
        name="sum-over-records-allowed",
        where="gradients/record_axis.py",
        edits=(("    if axis.dim in along:\n", "    if axis.dim in along and not dims:\n"),),
        does="an operation that works along the record axis is taken for one that keeps records apart",
        breaks="a model that centres its batch is run together, and one record changes what all others contribute",
        caught_by=("gradients/test_record_axis.py::test_what_mixes_records_is_not_proven",),
    ),
    Planted(
        name="unknown-operation-allowed",
        where="gradients/record_axis.py",
        edits=(("or (_pointwise if op.is_pointwise else _without_rule)", "or _pointwise"),),
        does="an operation without a rule is taken for one that goes element by element",
        breaks="whatever mixes records by an operation that nobody has looked at is run together",
        caught_by=("gradients/test_record_axis.py::test_an_operation_without_a_rule_is_not_proven",),
    ),
    Planted(
        name="batch-size-uncompared",
        where="gradients/record_axis.py",
        edits=(("_refuse_difference(trace, _run(", "(trace, _run("),),
        does="the operations at the size of the batch are not compared with those at another size",
        breaks="the number of records may enter what each contributes, so that one more or less changes all of it",
        caught_by=("gradients/test_record_axis.py::test_how_many_records_there_are_must_not_enter_as_a_number",),
    ),
    Planted(
        name="backward-pass-not-followed",
        where="gradients/differentiation.py",
        edits=(("                yield place.layer, grads[key]\n", ""),),
        does="only the forward pass is followed",
        breaks="a backward pass of the user's own may hand the gradient of one record to another",
        caught_by=("gradients/test_record_axis.py::test_a_backward_pass_that_mixes_is_found_in_the_fast_engine",),
    ),
    Planted(
        name="unproven-run-together",
        where="gradients/ghost.py",
        edits=(("self._together[size] = why is None", "self._together[size] = True"),),
        does="records are run together although they are not proven to be kept apart",
        breaks="the gradient of a record depends on the other ones, and no clip bounds what one record does",
        caught_by=("gradients/test_record_axis.py::test_an_engine_gives_what_a_loop_over_records_gives_or_refuses",),
    ),
    Planted(
        name="unproven-accepted-in-a-loop",
        where="gradients/hooked.py",
        edits=(("                self._prove_apart(num_images, inputs)\n", ""),),
        does="a model in a loop of the user's own is only tried on two made-up records",
        breaks="mixing that begins at a larger batch is not seen",
        caught_by=("gradients/test_record_axis.py::test_the_layer_and_the_operation_that_mix_are_named",),
    ),
    Planted(
        name="parts-of-a-record-alike",
        where="gradients/made_up.py",
        edits=(("torch.Generator().manual_seed(at)", "torch.Generator().manual_seed(0)"),),
        does="all parts of a made-up record are the same numbers",
        breaks="where a model compares two parts its gradients vanish, and zeros agree with zeros whatever is wrong",
        caught_by=("gradients/test_made_up.py::test_no_two_parts_of_an_image_are_alike",),
    ),
)

NOISE = (
    Planted(
        name="noise-halved",
        where="noise/isotropic.py",
        edits=(
            (
                " * with_rounding(private.sensitivity)",
                " * with_rounding(private.sensitivity) / 2",
            ),
        ),
        does="the noise is half of the one charged",
        breaks="ε is about twice as large, or more",
        caught_by=(
            "noise/test_isotropic.py::test_the_noise_has_the_multiplier_times_the_sensitivity_and_no_other_scale",
            "test_mechanism.py::test_the_noise_is_the_events_multiplier_times_what_a_neighbour_can_move",
            "games/test_step_game.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="replaced-record-at-half-price",
        where="mechanism.py",
        edits=(
            (
                "return self.sampling.sensitivity_factor * self.plan.noise_multiplier_at(planned_step) * factor",
                "return self.plan.noise_multiplier_at(planned_step) * factor",
            ),
        ),
        does="where neighbours have a record replaced, the noise is that for a record added or removed",
        breaks="one record leaves the sum and another enters it, which moves it twice as far",
        caught_by=(
            "test_mechanism.py::test_the_noise_is_the_events_multiplier_times_what_a_neighbour_can_move",
            "test_mechanism.py::test_a_step_is_charged_as_the_plan_has_it",
        ),
    ),
    Planted(
        name="variance-for-standard-deviation",
        where="noise/isotropic.py",
        edits=(
            (
                "torch._foreach_mul_(list(released.values()), noise_std)",
                "torch._foreach_mul_(list(released.values()), noise_std**2)",
            ),
        ),
        does="standard normal numbers are multiplied by the variance",
        breaks="below one, as with small clip norms, the variance is less than the standard deviation that was charged",
        caught_by=(
            "noise/test_isotropic.py::test_the_noise_has_the_multiplier_times_the_sensitivity_and_no_other_scale",
            "games/test_step_game.py::test_faults_are_found_in_a_short_game_too",
        ),
    ),
    Planted(
        name="same-noise-for-every-parameter",
        where="rng.py",
        edits=(
            (
                "parts = drawn.to(device).split_with_sizes([tensor.numel() for tensor in like.values()])",
                "parts = [drawn.to(device)[: tensor.numel()] for tensor in like.values()]",
            ),
        ),
        does="the noise of every parameter begins with the same numbers",
        breaks="the difference of two parameters has no noise at all",
        caught_by=(
            "noise/test_isotropic.py::test_parameters_of_one_shape_have_noise_of_their_own",
            "test_rng.py::test_normals_of_two_names_are_independent",
        ),
    ),
    Planted(
        name="noise-on-one-parameter",
        where="noise/isotropic.py",
        edits=(
            (
                "torch._foreach_mul_(list(released.values()), noise_std)",
                "torch._foreach_mul_(list(released.values()), [noise_std, *[0.0] * (len(released) - 1)])",
            ),
        ),
        does="the first parameter gets noise, the others none",
        breaks="all other parameters are released as they are",
        caught_by=("noise/test_isotropic.py::test_parameters_of_one_shape_have_noise_of_their_own",),
    ),
    Planted(
        name="choice-noise-halved",
        where="asking.py",
        edits=(
            (
                "scale = sampling.sensitivity_factor * energy.loss_clip / energy.epsilon",
                "scale = sampling.sensitivity_factor * energy.loss_clip / energy.epsilon / 2",
            ),
        ),
        does="the noisy choice of a step size has half of its noise",
        breaks="one choice costs twice the ε that is charged for it",
        caught_by=("privacy/test_queries_under_attack.py::test_choices_stay_below_what_is_charged_and_come_close",),
    ),
    Planted(
        name="question-sensitivity-halved",
        where="asking.py",
        edits=(
            (
                "mean.clamp(-energy.loss_clip, energy.loss_clip), 2 * energy.loss_clip",
                "mean.clamp(-energy.loss_clip, energy.loss_clip), energy.loss_clip",
            ),
        ),
        does="the noise of a clipped mean loss covers half of the clip's range",
        breaks="one record can move the mean from one end of the range to the other, past the noise",
        caught_by=(
            "privacy/test_queries_under_attack.py::"
            "test_the_answers_of_a_noisy_test_stay_below_what_is_charged_and_come_close",
        ),
    ),
    Planted(
        name="noise-used-twice",
        where="asking.py",
        edits=(('            purpose="energy",\n', '            purpose="noise",\n'),),
        does="the noise of a question about a candidate is that of the gradients of the same step",
        breaks="two releases with one noise can be subtracted from one another, and the noise is gone",
        caught_by=("test_asking.py::test_the_draw_and_the_noise_of_a_question_are_none_of_the_gradients",),
    ),
    Planted(
        name="same-noise-every-step",
        where="loop.py",
        edits=(
            (
                "released = mechanism.release(private, trainee.noise, planned_step=planned, randomness=randomness)",
                "same = {'planned_step': planned, 'randomness': self.folder.key.at(0, 0)}\n"
                "            released = mechanism.release(private, trainee.noise, **same)",
            ),
        ),
        does="every step has the noise of the first",
        breaks="the difference of two steps has no noise at all",
        caught_by=("test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",),
    ),
    Planted(
        name="same-noise-on-every-rank",
        where="sharded.py",
        edits=(
            (
                "return before + width * rows.start, before + width * rows.stop",
                "return before, before + width * len(rows)",
            ),
        ),
        does="where weights are sharded, every process begins the noise of a parameter with the same numbers",
        breaks="the difference of two rows has no noise at all",
        caught_by=("test_sharded.py::test_no_number_of_the_noise_is_used_by_two_ranks",),
    ),
    Planted(
        name="noise-of-the-first-rank-alone",
        where="sharded.py",
        edits=(
            (
                "        spans = [self.layout.places(name) for name in like]\n",
                "        if self.layout.number:\n"
                "            return {name: torch.zeros_like(value).double() for name, value in like.items()}\n"
                "        spans = [self.layout.places(name) for name in like]\n",
            ),
        ),
        does="where weights are sharded, only the first process adds noise, as it does where they are whole",
        breaks="the rows of all other processes are released as they are",
        caught_by=("test_sharded.py::test_a_share_of_a_sum_is_released_with_the_noise_of_the_whole",),
    ),
    Planted(
        name="score-has-the-noise-of-its-step",
        where="scoring.py",
        edits=(('randomness=randomness, purpose="score"', 'randomness=randomness, purpose="noise"'),),
        does="a score on private records has the same noise as the sum of its step",
        breaks="whoever knows one of the two values takes the noise off the other",
        caught_by=("test_loop.py::test_no_stream_of_random_numbers_is_used_for_two_things",),
    ),
    Planted(
        name="seeds-of-32-bits",
        where="rng.py",
        edits=(('part).digest(8), "little")', 'part).digest(4), "little")'),),
        does="a generator on a GPU is seeded with 32 bits",
        breaks="all seeds can be tried: whoever finds the right one takes the noise off",
        caught_by=("test_rng.py::test_all_64_bits_of_a_gpus_seed_vary",),
    ),
    Planted(
        name="noise-repeats-after-65536-steps",
        where="rng.py",
        edits=(("self.step, self.attempt, part)", "self.step % 65_536, self.attempt, part)"),),
        does="the step is counted in 16 bits where random numbers are made",
        breaks="two sums have the same noise: their difference has none",
        caught_by=(
            "test_rng.py::test_no_two_steps_and_no_two_attempts_of_the_longest_run_share_a_number",
            "test_loop.py::test_every_step_of_a_long_run_has_randomness_of_its_own",
        ),
    ),
    Planted(
        name="two-steps-share-their-noise",
        where="rng.py",
        edits=(
            (
                "self.step, self.attempt, part)",
                "self.step if self.step < 1000 else self.step // 2 * 2, self.attempt, part)",
            ),
        ),
        does="from step 1000 on, two steps have the same random numbers",
        breaks="the difference of the two sums has no noise",
        caught_by=(
            "test_rng.py::test_no_two_steps_and_no_two_attempts_of_the_longest_run_share_a_number",
            "test_loop.py::test_every_step_of_a_long_run_has_randomness_of_its_own",
        ),
    ),
    Planted(
        name="noise-cut-off",
        where="rng.py",
        edits=(
            (
                "return _box_muller(_uniforms(words))[:length].to(device)",
                "return _box_muller(_uniforms(words))[:length].clamp(-4.5, 4.5).to(device)",
            ),
        ),
        does="noise never exceeds 4.5 standard deviations",
        breaks="a value further from one sum than that cannot have come from it, which is certain knowledge",
        caught_by=(
            "test_rng.py::test_the_far_tails_of_the_normals_are_there",
            "noise/test_isotropic.py::test_the_far_tails_of_the_noise_are_there",
        ),
    ),
    Planted(
        name="norm-in-the-metrics",
        where="loop.py",
        edits=(
            (
                'clip_norm = {"clip_norm": private.sensitivity} if is_public else {}',
                "norm = math.hypot(*(float(value.norm()) for value in private.values.values()))\n"
                '        clip_norm = {"clip_norm": private.sensitivity * (1 + 1e-8 * norm)} if is_public else {}',
            ),
        ),
        does="the norm of the sum before its noise stands in the last digits of what the metrics say about the clip",
        breaks="what is computed from private records leaves without noise",
        caught_by=("test_loop.py::test_all_that_a_run_tells_follows_from_what_was_released",),
    ),
)

ACCUMULATION = (
    Planted(
        name="noise-divided-by-parts",
        where="mechanism.py",
        edits=(
            (
                "        total = added_to(total, part)\n",
                "        total = added_to(total, part)\n"
                "        total = replace(total, sensitivity=total.sensitivity / 2)\n",
            ),
        ),
        does="with every physical batch of a draw the noise is halved",
        breaks="a record is in one of them, and moves the sum as far as ever",
        caught_by=(
            "test_mechanism.py::test_adding_parts_keeps_the_sensitivity_of_one",
            "test_mechanism.py::test_noise_is_added_once_however_many_parts_a_draw_has",
        ),
    ),
    Planted(
        name="running-sum-in-float32",
        where="mechanism.py",
        edits=(("value.to(torch.float64, copy=True)", "value.to(torch.float32, copy=True)"),),
        does="physical batches are added up in float32",
        breaks="with one record less every further batch is rounded otherwise: of many, by more than the sensitivity",
        caught_by=("test_mechanism.py::test_one_record_moves_a_sum_over_many_parts_by_no_more_than_the_sensitivity",),
    ),
    Planted(
        name="positions-summed-in-float32",
        where="gradients/contributions/outer.py",
        edits=(("if positions > 1 and not left.is_cuda:", "if False:"),),
        does="positions of several records are added up in float32",
        breaks="positions that cancel in one record round what others add, by as much as a clip norm",
        caught_by=(
            "gradients/contributions/test_outer.py::test_positions_that_cancel_hardly_round_what_other_records_add",
        ),
    ),
    Planted(
        name="physical-batches-in-order",
        where="mechanism.py",
        edits=(
            (
                "return shuffled(self.sampling.draw(num_held, randomness), randomness)",
                "return self.sampling.draw(num_held, randomness)",
            ),
        ),
        does="physical batches are cut from the records in their own order",
        breaks="one record less moves all others to other batches, where each is rounded otherwise",
        caught_by=("test_mechanism.py::test_a_draw_is_in_an_order_that_its_places_say_nothing_of",),
    ),
    Planted(
        name="no-noise-on-accumulated-parts",
        where="loop.py",
        edits=(
            (
                "            is_accepted = self._propose(",
                "            if len(places) > training.physical_batch:\n"
                "                released = ReleasedSum(values=private.values)\n"
                "            is_accepted = self._propose(",
            ),
        ),
        does="a draw that needs several physical batches is released without noise",
        breaks="nothing hides a record in it",
        caught_by=(
            "test_loop.py::test_how_a_draw_is_portioned_makes_no_difference",
            "test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",
        ),
    ),
    Planted(
        name="divided-by-the-drawn-size",
        where="loop.py",
        edits=(
            (
                "            is_accepted = self._propose(",
                "            drawn = mechanism.divisor / max(1, len(places))\n"
                "            resized = {name: value * drawn for name, value in released.values.items()}\n"
                "            released = ReleasedSum(values=resized)\n"
                "            is_accepted = self._propose(",
            ),
        ),
        does="a released sum is divided by the number of records drawn, not by a constant",
        breaks="one record changes the divisor, and with it what all others add; no noise was scaled for that",
        caught_by=("test_loop.py::test_a_run_is_dpsgd_as_it_is_written_in_the_paper",),
    ),
)

RESUME = (
    Planted(
        name="given-back-and-resumed",
        where="training/paying.py",
        edits=(("if paid.is_settled and not (", "if not paid.is_settled and not ("),),
        does="a run goes on although the budget was given back what it had reserved",
        breaks="its steps are charged to nobody, and others may have spent what was given back",
        caught_by=("training/test_paying.py::test_a_run_whose_reservation_was_given_back_does_not_go_on",),
    ),
    Planted(
        name="interrupted-and-given-back",
        where="training/paying.py",
        edits=(
            (
                "        folder.close()\n        raise\n    return folder",
                "        with Budget.open(budget) as account:  # type: ignore[arg-type]\n"
                "            if _paid(account, folder.ledger.run) is not None:\n"
                "                account.settle(folder.ledger.run, used=NOTHING)\n"
                "        folder.close()\n        raise\n    return folder",
            ),
            (
                "paid is None and is_untouched:",
                "is_untouched:\n            if paid is not None:\n                return",
            ),
        ),
        does="a run that is interrupted while it begins gives back what it reserved, and can be resumed all the same",
        breaks="all of its steps are charged to nobody",
        caught_by=("training/test_planned.py::test_a_run_that_is_interrupted_while_it_begins_is_never_free",),
    ),
    Planted(
        name="reservation-of-a-namesake",
        where="training/paying.py",
        edits=(("if paid is None or (paid.run_id != folder.run_id and (", "if paid is None or (False and ("),),
        does="a run takes the reservation of another run of the same name for its own",
        breaks="two runs are trained and one is paid for",
        caught_by=("training/test_paying.py::test_a_reservation_of_another_run_of_the_same_name_pays_for_nothing",),
    ),
    Planted(
        name="search-given-back-and-resumed",
        where="search/paying.py",
        edits=(("if status.charged != entries[run]:", "if status.reserved != entries[run]:"),),
        does="a search goes on although the budget was given back what it had reserved",
        breaks="its trials are charged to nobody",
        caught_by=("search/test_paying.py::test_a_search_whose_reservation_was_given_back_does_not_go_on",),
    ),
    Planted(
        name="attempt-not-renewed",
        where="attempts.py",
        edits=(
            (
                "number=0 if last is None and is_untouched else RunKey.fresh_attempt(),",
                "number=0,",
            ),
        ),
        does="a run that is begun anew with other code or settings draws the noise of its first life again",
        breaks="the two lives of a step can be subtracted from one another, and the noise is gone",
        caught_by=(
            "test_loop.py::test_nothing_is_drawn_twice_from_one_attempt_by_different_environments",
            "privacy/test_loop_under_attack.py::test_subtracting_two_lives_of_a_step_does_not_take_the_noise_off",
        ),
    ),
    Planted(
        name="environment-ignored",
        where="attempts.py",
        edits=(
            (
                "if last is not None and last.environment == environment and (",
                "if last is not None and (",
            ),
        ),
        does="a run that goes on where sums come out otherwise counts as the same to the bit",
        breaks="steps that were charged once are taken twice, with one noise and two sums",
        caught_by=(
            "test_loop.py::test_resuming_elsewhere_draws_afresh_and_pays_again",
            "test_attempts.py::test_an_attempt_goes_on_only_where_it_wrote_the_checkpoint_and_nothing_changed",
        ),
    ),
    Planted(
        name="other-records-ignored",
        where="run_folder.py",
        edits=(
            ("        if whole_file.read(self.files.fingerprint) != fingerprint(self.key):\n", "        if False:\n"),
        ),
        does="a run may be resumed with other records",
        breaks="the noise of a step is then used on the sums of two data sets, whose difference has none",
        caught_by=("test_run_folder.py::test_another_plan_or_other_records_are_refused_by_name",),
    ),
    Planted(
        name="contents-of-folders-ignored",
        where="data/file_list.py",
        edits=(("        yield from self.digests(np.arange(len(self)))\n", ""),),
        does="a folder that stays on the disk is known by the names, sizes and times of its files alone",
        breaks="with one file replaced, a resumed run has the noise of a step on two sums, whose difference has none",
        caught_by=(
            "data/test_file_list.py::test_the_identity_follows_what_is_in_a_file_that_looks_as_before",
            "training/test_streamed_training.py::"
            "test_a_run_is_not_resumed_where_a_file_has_other_bytes_of_the_same_size_and_time",
        ),
    ),
    Planted(
        name="attempts-counted",
        where="attempts.py",
        edits=(("else RunKey.fresh_attempt(),", "else (0 if last is None else last.number) + 1,"),),
        does="attempts are numbered in turn, not drawn",
        breaks="two copies of a folder, resumed with different code, use the same noise on different sums",
        caught_by=("privacy/test_loop_under_attack.py::test_copies_of_a_folder_never_meet_in_an_attempt",),
    ),
    Planted(
        name="noise-of-another-step",
        where="attempts.py",
        edits=(("return step + self._shift", "return step"),),
        does="a run that is begun anew has the noise of the steps it repeats, not of those that pay for them",
        breaks="under a schedule the steps of the plan that pay may have charged for more noise than there is",
        caught_by=("test_loop.py::test_a_run_begun_anew_pays_with_later_steps_of_the_plan_and_has_their_noise",),
    ),
    Planted(
        name="position-lost",
        where="loop.py",
        edits=(
            (
                "for step in range(trainee.step, charges.last_step):",
                "for position, step in enumerate(range(trainee.step, charges.last_step)):",
            ),
            (
                "planned, randomness = charges.planned(step), self._randomness(step)",
                "planned, randomness = charges.planned(step), self._randomness(position)",
            ),
        ),
        does="a resumed run begins its random numbers from the start",
        breaks="draws and noise of the first steps are used a second time, on other sums",
        caught_by=("test_loop.py::test_what_the_slots_have_learnt_survives_a_crash_to_the_bit",),
    ),
    Planted(
        name="charged-after-the-release",
        where="loop.py",
        edits=(
            ("            if not charges.covers(step):\n", "            if False:\n"),
            (
                "            # What people see, and what is kept for a crash.\n",
                "            if not charges.covers(step):\n"
                "                self._pay(charges, step)\n"
                "                self.spent = training.epsilon_of(self.folder.ledger.charged())\n",
            ),
        ),
        does="a step is written to the ledger when it is over",
        breaks="a crash in between leaves a step that was taken and never charged",
        caught_by=("test_loop.py::test_a_step_is_charged_on_the_disk_before_its_records_are_drawn",),
    ),
)

ACCOUNTING = (
    Planted(
        name="first-step-free",
        where="attempts.py",
        edits=(("return step < self.charged_until", "return step <= self.charged_until"),),
        does="one step of a run counts as charged before it was",
        breaks="the ledger is a step short of what was done",
        caught_by=(
            "test_loop.py::test_the_plan_is_charged_in_full_and_not_a_step_more",
            "test_loop.py::test_a_step_is_charged_on_the_disk_before_its_records_are_drawn",
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
        does="a plan counts the candidates that will be accepted, not those that will be tried",
        breaks="a rejected candidate was looked at too, and that it was rejected tells something",
        caught_by=("planning/test_plan.py::test_a_plan_that_stops_at_accepted_is_counted_at_all_of_its_candidates",),
    ),
    Planted(
        name="accepted-only-charged",
        where="loop.py",
        edits=(
            (
                "            trainee.end_step(Taken(",
                "            charges.charged_until += not is_accepted\n            trainee.end_step(Taken(",
            ),
        ),
        does="the charge of a rejected candidate is used again for the next one",
        breaks="candidates are tried for free until one is accepted, which picks among noises",
        caught_by=("test_loop.py::test_rejected_candidates_leave_weights_and_momentum_as_they_were_and_stay_charged",),
    ),
    Planted(
        name="question-uncharged",
        where="asking.py",
        edits=(
            (
                "        return sampling.event(Gaussian(sampling.sensitivity_factor * energy.noise_multiplier))",
                "        return NOTHING",
            ),
        ),
        does="asking private records about a candidate costs nothing",
        breaks="the answer has seen the records, and its noise is worth what noise is worth: not nothing",
        caught_by=("test_asking.py::test_a_question_is_charged_as_what_it_is",),
    ),
    Planted(
        name="scores-uncharged",
        where="attempts.py",
        edits=(
            (
                "return sum(map(self.is_scored, range(first, last))) if self._allowance.is_scored_privately else 0",
                "return 0",
            ),
        ),
        does="scores on held-out private records cost nothing",
        breaks="each is a release of its own",
        caught_by=("test_loop.py::test_scores_on_private_records_are_charged_with_the_steps_and_repeated_for_free",),
    ),
    Planted(
        name="ledger-overdrawn",
        where="ledger.py",
        edits=(("        if not _is_allowed(after, self.plan_event, self.adjacency):\n", "        if False:\n"),),
        does="the ledger takes more than the plan has",
        breaks="ε was promised for the plan, and nothing else stops a run that goes beyond it",
        caught_by=("test_ledger.py::test_the_last_step_of_the_plan_is_taken_and_one_more_is_refused",),
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
        does="Rényi divergences are converted with the order in place of the order less one",
        breaks="ε comes out smaller than the theorem gives, and noise is calibrated to that",
        caught_by=("accounting/test_rdp.py::test_balle20_at_whole_orders_gives_the_reference_values",),
    ),
    Planted(
        name="calibrated-from-outside",
        where="accounting/last_within.py",
        edits=(("    return inside\n\n\ndef _is_done", "    return outside\n\n\ndef _is_done"),),
        does="of two noises around the target, calibration gives the one that misses it",
        breaks="the run costs more than was asked for",
        caught_by=("accounting/test_last_within.py::test_a_real_value_is_found_within_a_thousandth_and_from_inside",),
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
        does="an approximation that may lie below the truth is taken as a bound",
        breaks="the ε that is promised is one that nobody has proven",
        caught_by=("accounting/test_accountant.py::test_the_bound_is_the_smallest_valid_answer_and_no_estimate",),
    ),
    Planted(
        name="published-as-proven",
        where="planning/published.py",
        edits=(
            ("    if not rule.is_broken:\n", "    if True:\n"),
            (
                "broken = [] if is_whole else [Premise(rule.theorem, Standing.BROKEN, because=_NOT_ALL)]",
                "broken = []",
            ),
        ),
        does="what a paper's refuted rule says is given out as proven",
        breaks="the number is not an upper bound on anything",
        caught_by=(
            "planning/test_published.py::test_a_broken_rule_gives_a_number_with_its_reason_and_where_it_is_shown",
        ),
    ),
    Planted(
        name="early-end-scored-for-free",
        where="loop.py",
        edits=(
            (
                "if scorer is None or self.training.allowance.is_scored_privately or not step:",
                "if scorer is None or not step:",
            ),
        ),
        does="a run that ends early is scored on private records once more, which is not charged",
        breaks="a score is released that nobody paid for",
        caught_by=("test_loop.py::test_every_score_on_private_records_is_charged_also_where_a_run_ends_early",),
    ),
    Planted(
        name="mass-beyond-the-window-forgotten",
        where="accounting/tilted.py",
        edits=(("lost = self._beyond_window(repeats) + infinite", "lost = infinite"),),
        does="losses above the window of a transform are taken for none",
        breaks="ε is too small, by as much as the window is too narrow",
        caught_by=(
            "accounting/test_tilted.py::test_a_window_that_is_too_narrow_makes_epsilon_larger_and_never_smaller",
        ),
    ),
    Planted(
        name="infinite-losses-forgotten",
        where="accounting/tilted.py",
        edits=(("lost = self._beyond_window(repeats) + infinite", "lost = self._beyond_window(repeats)"),),
        does="the mass that a grid calls infinitely lossy is not taken off δ",
        breaks="ε is too small",
        caught_by=("accounting/test_tilted.py::test_masses_that_the_grid_calls_infinitely_lossy_are_counted",),
    ),
    Planted(
        name="shortened-law-forgets",
        where="accounting/rare.py",
        edits=(("law.infinite_mass + float(law.masses[last:].sum())", "law.infinite_mass"),),
        does="masses that are cut off a law of rare losses are forgotten",
        breaks="ε is too small",
        caught_by=("accounting/test_rare.py::test_masses_that_are_left_out_are_counted_as_lost",),
    ),
    Planted(
        name="total-variation-without-a-root",
        where="accounting/rdp.py",
        edits=(("-np.expm1(-divergences) <= delta**2", "-np.expm1(-divergences) <= delta"),),
        does="a divergence of δ, and not of δ², counts as a total variation of δ",
        breaks="ε = 0 is said of what tells neighbours apart",
        caught_by=("accounting/test_rdp.py::test_with_ever_more_noise_epsilon_is_never_below_the_exact_one",),
    ),
    Planted(
        name="selection-among-one",
        where="accounting/rdp.py",
        edits=(("extra = atom.mean * np.array(", "extra = np.array("),),
        does="selection among a Poisson number of runs is charged without their number",
        breaks="the best of many runs costs as much as that of few",
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
        breaks="the divergence lies below the theorem's where there is much noise",
        caught_by=("accounting/test_rdp.py::test_without_replacement_no_divergence_is_below_the_theorem",),
    ),
)

SHAPED = (
    Planted(
        name="shape-misses-a-factor",
        where="noise/shaped.py",
        edits=(
            (
                "scale = noise_multiplier * _norm(ratios, unit=hardest) * _ABOVE",
                "scale = noise_multiplier * hardest * _ABOVE",
            ),
        ),
        does="noise in proportion to the bounds of m coordinates misses the factor √m",
        breaks="each coordinate alone is covered, all m of them together are not",
        caught_by=(
            "noise/test_proportional.py::"
            "test_the_noise_of_each_coordinate_is_the_multiplier_times_the_root_of_their_number_times_its_bound",
        ),
    ),
    Planted(
        name="slots-learn-from-raw-sums",
        where="loop.py",
        edits=(
            (
                "trainee.end_step(Taken(released=released,",
                "trainee.end_step(Taken(released=ReleasedSum(values=private.values),",
            ),
        ),
        does="bounds and shapes of the next steps follow the sum without its noise",
        breaks="what the next noise looks like tells what this sum was",
        caught_by=("test_loop.py::test_the_slots_learn_from_what_was_released_and_from_nothing_else",),
    ),
    Planted(
        name="prior-peeks",
        where="clipping/prior.py",
        edits=(
            (
                "    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:\n"
                "        return state\n",
                "    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:\n"
                "        return self.learn(state, ReleasedSum(values=private.values), divisor=divisor)\n",
            ),
        ),
        does="a prior from released sums also learns from those without noise",
        breaks="bounds, and so the noise, tell what the sums were",
        caught_by=("clipping/test_adaptive.py::test_a_prior_from_released_sums_never_looks_at_a_private_one",),
    ),
    Planted(
        name="raw-prior-as-proven",
        where="clipping/prior.py",
        edits=(
            (
                "    unproven: ClassVar[str | None] = RAW\n",
                "    unproven: ClassVar[str | None] = None\n",
            ),
        ),
        does="a clip whose bounds follow sums without noise says nothing of it",
        breaks="the step is charged as if it were private, and is not",
        caught_by=(
            "clipping/test_adaptive.py::test_a_raw_prior_tells_neighbours_apart_although_the_same_was_released",
        ),
    ),
)

TWO = "test_distributed.py::test_a_run_of_two_processes_is_that_of_one_with_its_noise_once"
RANKS = (
    Planted(
        name="every-rank-sums-the-draw",
        where="distributed.py",
        edits=(("return places[self.number :: self.total]", "return places"),),
        does="each of W processes sums all records that were drawn, and not its share of them",
        breaks="a record is in every one of the sums, and moves the whole W times as far as the noise was scaled for",
        caught_by=(
            "test_distributed.py::test_the_shares_of_all_ranks_are_the_draw_and_no_two_have_a_record_in_common",
        ),
    ),
    Planted(
        name="no-noise-on-several-ranks",
        where="loop.py",
        edits=(
            (
                "            is_accepted = self._propose(",
                "            if training.ranks.total > 1:\n"
                "                released = ReleasedSum(values=private.values, noise_std=released.noise_std)\n"
                "            is_accepted = self._propose(",
            ),
        ),
        does="the sum of several processes is used without noise",
        breaks="nothing hides a record in it",
        caught_by=(TWO,),
    ),
    Planted(
        name="noise-on-every-rank",
        where="training/ranked.py",
        edits=(
            (
                "        run.ranks.give_back(added(share.parts(places, clip, randomness)))\n",
                "        own = added(share.parts(places, clip, randomness))\n"
                "        state = run.scored.method.noise.start({})\n"
                "        noisy = run.mechanism.release(own, state, planned_step=order.step, randomness=randomness)\n"
                "        run.ranks.give_back(type(own)(values=noisy.values, sensitivity=own.sensitivity))\n",
            ),
        ),
        does="every process adds the noise to its own sum",
        breaks="what is added is not what is charged: here more, by the same numbers each time",
        caught_by=(TWO,),
    ),
    Planted(
        name="one-stream-for-all-ranks",
        where="distributed.py",
        edits=(('return f"{name}, rank {self.number}" if self.number else name', "return name"),),
        does="all processes augment, and drop, by the same numbers",
        breaks="records of two processes share theirs, and a record more changes which: more moves than its own part",
        caught_by=("test_distributed.py::test_no_two_ranks_augment_or_drop_by_the_same_numbers",),
    ),
    Planted(
        name="number-of-ranks-ignored",
        where="distributed.py",
        edits=(
            (
                'return {**mine, "ranks": f"{self.total}: {json.dumps(found, sort_keys=True)}"}',
                "return dict(mine)",
            ),
        ),
        does="a run that is resumed by another number of processes counts as the same to the bit",
        breaks="sums that are rounded otherwise get the noise of their first life: it can be subtracted",
        caught_by=("test_distributed.py::test_what_is_taken_again_by_another_number_of_ranks_is_charged_again",),
    ),
)

CERTIFICATES = (
    Planted(
        name="limit-not-recomputed",
        where="reports/checking.py",
        edits=(("        if not reached <= budget.epsilon:\n", "        if False:\n"),),
        does="where a certificate's ε is the limit of a budget, the event need not be within that limit",
        breaks="a million steps are certified at the ε of one",
        caught_by=(
            "reports/test_checking.py::test_where_the_guarantee_is_a_limit_the_event_is_what_was_reserved_within_it",
        ),
    ),
    Planted(
        name="reservation-not-compared",
        where="reports/checking.py",
        edits=(("    if counted(own) != counted(budget.reserved):\n", "    if False:\n"),),
        does="a certificate may be for another event than the budget reserved",
        breaks="the budget admitted something else, and its limit says nothing about this",
        caught_by=(
            "reports/test_checking.py::test_where_the_guarantee_is_a_limit_the_event_is_what_was_reserved_within_it",
        ),
    ),
    Planted(
        name="certificate-in-the-folder-believed",
        where="release.py",
        edits=(("        _refuse_another_promise(found, made, files.certificate)\n", "        return found\n"),),
        does="a release takes the certificate that lies in the run's folder",
        breaks="whoever puts a smaller ε there has it on the model's card",
        caught_by=("test_release.py::test_a_certificate_in_the_folder_is_not_believed",),
    ),
    Planted(
        name="any-delta-certified",
        where="reports/promising.py",
        edits=(("    if delta <= largest_delta(records):\n", "    if True:\n"),),
        does="a certificate is issued whatever δ is",
        breaks="with δ = 0.1, every tenth record could be published as it is, and ε would not tell",
        caught_by=("reports/test_checking.py::test_a_delta_that_would_allow_many_records_to_be_published_is_refused",),
    ),
    Planted(
        name="labels-read-from-the-records",
        where="compat/classifier.py",
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
        does="the classes that a model tells apart are those of its private labels",
        breaks="a label that one person alone has is an output of the model: no noise hides it",
        caught_by=(
            "compat/test_classifier.py::test_what_would_be_read_from_private_data_must_be_stated_or_said_to_be_public",
        ),
    ),
    Planted(
        name="search-certified-as-fixed",
        where="training/earlier_fits.py",
        edits=(("        earlier.settings != fit.settings\n", "        False\n"),),
        does="the last fit of a search has the certificate of one whose settings were fixed beforehand",
        breaks="which settings won tells of the records, and the fits before it cost as much again, each",
        caught_by=(
            "training/test_earlier_fits.py::test_a_loop_over_settings_ends_without_a_certificate",
            "compat/test_classifier.py::test_what_a_grid_search_chooses_has_no_certificate",
        ),
    ),
)

OPACUS = "compat/opacus"
INTEGRATIONS = (
    Planted(
        name="mixing-on-the-second-axis-unseen",
        where=f"{OPACUS}/private_steps.py",
        edits=(("outputs = turned_like(outputs, more, num_positions=num_positions(inputs))", "pass"),),
        does="of a model with batch_first=False, outputs are not tried for records that meet on the second axis",
        breaks="the loss of a record depends on the others behind the last layer, where no clip bounds it",
        caught_by=(f"{OPACUS}/test_records_first.py::test_records_that_meet_on_the_second_axis_are_refused",),
    ),
    Planted(
        name="second-optimizer-uncharged",
        where=f"{OPACUS}/private_steps.py",
        edits=(("        if self._listener.is_counted:", "        if False:"),),
        does="an optimizer that was built by hand steps on a model whose engine counts only its own optimizer's steps",
        breaks="its steps are charged to nobody, and ε is that of the others",
        caught_by=(
            f"{OPACUS}/optimizers/test_optimizer.py::test_none_is_built_by_hand_over_a_model_whose_steps_are_counted",
        ),
    ),
    Planted(
        name="grad-sampler-sees-the-batch",
        where=f"{OPACUS}/grad_sample/utils.py",
        edits=(
            (
                "[function(layer, [inputs], grads) for inputs, grads in zip(*views, strict=True)]",
                "[function(layer, [site.inputs.flatten(0, 1)], site.output_grads.flatten(0, 1)) for _ in range(1)]",
            ),
        ),
        does="a grad sampler of the user's own is given all records at once",
        breaks="what it returns for one record may be made of all of them, and the clip bounds none",
        caught_by=(f"{OPACUS}/grad_sample/test_utils.py::test_a_grad_sampler_that_mixes_records_cannot",),
    ),
)

EVERY = {
    "Sampler": SAMPLER,
    "Clip": CLIP,
    "Records": RECORDS,
    "Noise": NOISE,
    "Accumulation": ACCUMULATION,
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
