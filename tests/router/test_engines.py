"""Facts from metrics pages: a real one of vLLM, and pages with each engine's documented names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.router.engines import ENGINES, Engine, read_facts
from tierway.router.facts import Facts

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "metrics" / "vllm_sample.txt"
VLLM = ENGINES["vllm"]


def facts(page: str, engine: Engine = VLLM) -> tuple[int | None, int | None, float | None]:
    found = read_facts(engine, page, 5.0)
    return found.running, found.waiting, found.kv_usage


@pytest.mark.skipif(not SAMPLE.is_file(), reason="the recorded page is not part of the checkout")
def test_a_recorded_page_of_vllm() -> None:
    found = read_facts(VLLM, SAMPLE.read_text(), 12.5)
    assert found == Facts(
        running=6,
        waiting=0,
        kv_usage=pytest.approx(0.0037233717878288886),
        kv_capacity_tokens=524_288,
        preemptions=0,
        process_start_s=1.79606538434e9,
        read_s=12.5,
        page_s=12.5,
    )


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        (
            "vllm",
            'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
            'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n',
            (3, 2, 0.25),
        ),
        (
            "sglang",
            'sglang:num_running_reqs{engine_type="unified",model_name="m"} 4.0\n'
            'sglang:num_queue_reqs{engine_type="unified",model_name="m"} 1.0\n'
            'sglang:token_usage{engine_type="unified",model_name="m"} 0.5\n',
            (4, 1, 0.5),
        ),
        ("tgi", "tgi_batch_current_size 7\ntgi_queue_size 5\n", (7, 5, None)),
        (
            "trtllm",
            'trtllm_num_requests_running{engine_type="x"} 2\n'
            'trtllm_num_requests_waiting{engine_type="x"} 9\n'
            'trtllm_kv_cache_utilization{engine_type="x"} 0.9\n',
            (2, 9, 0.9),
        ),
        (
            "llamacpp",
            "llamacpp:requests_processing 1\nllamacpp:requests_deferred 6\n",
            (1, 6, None),
        ),
    ],
)
def test_each_engine_by_its_own_names(
    engine: str, page: str, expected: tuple[int | None, int | None, float | None]
) -> None:
    assert facts(page, ENGINES[engine]) == expected


@pytest.mark.parametrize("engine", ["ollama", "generic"])
def test_engines_without_metrics_say_where_they_live_and_nothing_else(engine: str) -> None:
    table = ENGINES[engine]
    assert table.metrics is None
    assert table.health.startswith("/")
    assert facts("vllm:num_requests_running 3\n", table) == (None, None, None)


def test_the_order_of_labels_does_not_matter() -> None:
    assert facts('vllm:num_requests_running{model_name="m",engine="0"} 3\n')[0] == 3
    assert facts("vllm:num_requests_running 3\n")[0] == 3


def test_counts_of_data_parallel_ranks_are_summed_and_the_fullest_cache_counts() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} {rank + 1}\n'
        f'vllm:num_requests_waiting{{engine="{rank}",model_name="m"}} {rank}\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.{rank + 1}\n'
        for rank in range(4)
    )
    assert facts(page) == (10, 6, 0.4)


def sglang(value: float, **labels: object) -> str:
    told = "".join(f',{name}="{label}"' for name, label in labels.items())
    return (
        f'sglang:num_running_reqs{{model_name="m"{told}}} {value}\n'
        f'sglang:token_usage{{model_name="m"{told}}} 0.{value}\n'
    )


def test_ranks_that_share_their_requests_count_once() -> None:
    def running(*samples: str) -> int | None:
        return facts("".join(samples), ENGINES["sglang"])[0]

    tensor = [sglang(3, tp_rank=rank, pp_rank=0, moe_ep_rank=rank // 2) for rank in range(4)]
    assert running(*tensor) == running(*reversed(tensor)) == 3
    stages = [sglang(3 - stage, tp_rank=0, pp_rank=stage) for stage in range(2)]
    assert running(*stages) == running(*reversed(stages)) == 3
    page = "".join([sglang(3, tp_rank=0), sglang(9, tp_rank=1)])
    assert facts(page, ENGINES["sglang"]) == (3, None, 0.3)


def test_data_parallel_ranks_are_summed_also_where_they_split_one_tensor_group() -> None:
    own = [sglang(3, tp_rank=tp, pp_rank=0, dp_rank=dp) for dp in range(2) for tp in range(2)]
    assert facts("".join(own), ENGINES["sglang"])[0] == 6
    split = [sglang(3, tp_rank=rank, pp_rank=0, dp_rank=rank // 2) for rank in range(4)]
    assert facts("".join(split), ENGINES["sglang"])[0] == 6
    assert facts("".join(split[::2]), ENGINES["sglang"])[0] == 6


def test_odd_ranks_are_no_fault() -> None:
    page = "".join(sglang(2, tp_rank=rank) for rank in ("", "x", "²", "-1", "9" * 5000))
    assert facts(page, ENGINES["sglang"])[0] == 2


def test_the_old_name_of_the_kv_gauge_is_read_and_the_new_one_goes_before_it() -> None:
    old = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.75\n'
    new = 'vllm:kv_cache_usage_perc{model_name="m"} 0.5\n'
    assert facts(old)[2] == 0.75
    assert facts(old + new)[2] == facts(new + old)[2] == 0.5


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "", "many", "-1"])
def test_one_value_that_makes_no_sense_leaves_the_whole_gauge_unknown(value: str) -> None:
    page = f'vllm:num_requests_running{{engine="0"}} {value}\n'
    assert facts(page + 'vllm:num_requests_running{engine="1"} 2\n')[0] is None
    assert facts(page + 'vllm:num_requests_waiting{engine="0"} 2\n')[:2] == (None, 2)


@pytest.mark.parametrize("value", ["NaN", "37.5", "-0.1", "perhaps"])
def test_a_share_out_of_its_range_is_not_known(value: str) -> None:
    page = f'vllm:kv_cache_usage_perc{{engine="0"}} {value}\n'
    assert facts(page + 'vllm:kv_cache_usage_perc{engine="1"} 0.2\n')[2] is None
    assert facts("vllm:kv_cache_usage_perc 1.002\n")[2] == 1.0


@pytest.mark.parametrize("line", ["vllm:num_requests_running", "vllm:num_requests_running "])
def test_a_name_without_a_value_is_not_known(line: str) -> None:
    assert facts(line + "\n")[0] is None
    assert facts(line)[0] is None


def test_a_line_that_may_have_been_cut_is_not_read() -> None:
    assert facts("vllm:num_requests_waiting 1\nvllm:num_requests_running 12") == (None, 1, None)


def test_a_page_that_only_mentions_the_names_is_empty() -> None:
    renamed = 'vllm:num_running{engine="0"} 3\nvllm:kv_cache_usage_percent 0.5\n'
    assert read_facts(VLLM, renamed, 1.0).empty
    assert read_facts(VLLM, "# HELP vllm:num_requests_running 3\n", 1.0).empty
    assert not read_facts(VLLM, "vllm:num_requests_waiting 0\n", 1.0).empty


@pytest.mark.parametrize(
    ("engine", "page", "tokens"),
    [
        ("vllm", 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\n', 16_000),
        (
            "vllm",
            'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="9000",'
            'num_gpu_blocks="1000"} 1.0\n',
            9_000,
        ),
        ("vllm", 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n', None),
        ("vllm", 'vllm:cache_config_info{block_size="0",num_gpu_blocks="7"} 1.0\n', None),
        ("vllm", 'vllm:cache_config_info{block_size="16"} 1.0\n', None),
        ("sglang", 'sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 50000.0\n', 50_000),
        ("sglang", "sglang:page_size 64\nsglang:num_pages 100\n", 6_400),
        ("sglang", 'sglang:cache_config_info{page_size="16",num_pages="10"} 1\n', 160),
        (
            "trtllm",
            "trtllm_kv_cache_max_blocks 300\ntrtllm_kv_cache_tokens_per_block 32\n",
            9_600,
        ),
        ("trtllm", "trtllm_kv_cache_max_blocks 300\n", None),
        ("tgi", "tgi_batch_current_max_tokens 300\n", None),
    ],
)
def test_how_many_tokens_the_kv_cache_holds(engine: str, page: str, tokens: int | None) -> None:
    assert read_facts(ENGINES[engine], page, 1.0).kv_capacity_tokens == tokens


def test_capacities_of_data_parallel_ranks_are_summed_and_shards_count_once() -> None:
    page = "".join(
        f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="{rank}00"}} 1.0\n'
        f'vllm:num_requests_running{{engine="{rank}"}} 1\n'
        for rank in (1, 2)
    )
    found = read_facts(VLLM, page, 1.0)
    assert (found.kv_capacity_tokens, found.ranks) == (4_800, 2)
    shards = "".join(
        f'sglang:max_total_num_tokens{{dp_rank="{rank // 2}",tp_rank="{rank}"}} 1000\n'
        for rank in range(4)
    )
    assert read_facts(ENGINES["sglang"], shards, 1.0).kv_capacity_tokens == 2_000


def test_a_long_page_is_read_where_it_matters() -> None:
    filler = "".join(f'other_metric{{label="{n}"}} {n}\n' for n in range(40_000))
    page = filler + "vllm:num_requests_running 3\n" + filler
    assert len(page) > 1 << 20
    assert facts(page)[0] == 3


def test_a_sum_that_is_no_number_is_not_known() -> None:
    page = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 1e308\n' for rank in range(2))
    assert facts(page)[0] is None


def test_timestamps_exponents_line_ends_and_odd_labels() -> None:
    assert facts("vllm:num_requests_running 3 1700000000000\n")[0] == 3
    assert facts('vllm:num_requests_running{engine="0"} 3 1700000000000\n')[0] == 3
    assert facts("vllm:num_requests_running 1.2e+01\r\n")[0] == 12
    assert facts("vllm:num_requests_running\t3\n")[0] == 3
    assert facts('vllm:num_requests_running{model_name="a}b{c"} 3\n')[0] == 3


def test_comments_and_longer_names_are_not_samples() -> None:
    page = (
        "# HELP vllm:num_requests_waiting Number of requests waiting.\n"
        "# TYPE vllm:num_requests_waiting gauge\n"
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 8.0\n'
        'vllm:num_requests_waiting{engine="0"} 1.0\n'
    )
    assert facts(page)[1] == 1


def test_what_is_not_on_the_page_is_not_known() -> None:
    assert read_facts(VLLM, "", 3.0) == Facts(read_s=3.0, page_s=3.0)
    assert facts("<html><body>404</body></html>") == (None, None, None)


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=200))
def test_any_other_text_is_a_page_without_facts(page: str) -> None:
    assert facts(page) == (None, None, None)


def sleeping(**states: float) -> str:
    """vLLM 0.33: one sample for each state and engine."""
    name = "vllm:engine_sleep_state"
    lines = [
        f'{name}{{engine="{rank[1:]}",model_name="m",sleep_state="{state}"}} {value}'
        for rank, awake in states.items()
        for state, value in (("awake", awake), ("weights_offloaded", 1.0 - awake))
    ]
    return "\n".join([*lines, ""])


def test_an_engine_sleeps_once_none_of_its_ranks_is_awake() -> None:
    assert not read_facts(VLLM, "vllm:num_requests_running 0\n", 0.0).asleep
    assert not read_facts(VLLM, sleeping(r0=1.0), 0.0).asleep
    assert not read_facts(VLLM, sleeping(r0=0.0, r1=1.0), 0.0).asleep
    assert read_facts(VLLM, sleeping(r0=0.0, r1=0.0), 0.0).asleep


def test_preemptions_are_counted_over_ranks_under_either_name() -> None:
    page = 'vllm:num_preemptions_total{engine="0"} 3\nvllm:num_preemptions_total{engine="1"} 4\n'
    assert read_facts(VLLM, page, 0.0).preemptions == 7
    assert read_facts(VLLM, "vllm:num_preemptions 2\n", 0.0).preemptions == 2
    page = 'sglang:num_retracted_requests_total{tp_rank="0"} 5\n'
    page += 'sglang:num_retracted_requests_total{tp_rank="1"} 5\n'
    assert read_facts(ENGINES["sglang"], page, 0.0).preemptions == 5


def test_no_free_block_is_a_fact() -> None:
    page = "trtllm_kv_cache_free_blocks 0\ntrtllm_kv_cache_tokens_per_block 32\n"
    assert read_facts(ENGINES["trtllm"], page, 0.0).kv_free_tokens == 0
    assert (
        read_facts(ENGINES["trtllm"], "trtllm_kv_cache_free_blocks 4\n", 0.0).kv_free_tokens is None
    )


def test_the_newest_process_behind_a_page_counts() -> None:
    page = 'process_start_time_seconds 1.7e9\nprocess_start_time_seconds{pid="2"} 1.8e9\n'
    assert read_facts(VLLM, page, 0.0).process_start_s == 1.8e9
    assert read_facts(VLLM, "process_start_time_seconds 0\n", 0.0).process_start_s is None
