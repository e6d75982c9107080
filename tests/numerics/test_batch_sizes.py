"""The batch sizes that passes are padded to, and those that are certified."""

from holdfast.numerics.batch_sizes import cpu_batch_sizes, padded_batch_sizes, padded_head_size


def test_cpu_batch_sizes_waste_an_eighth_at_most() -> None:
    for largest in (32, 100, 512, 2048):
        sizes = cpu_batch_sizes(largest)
        assert sizes[-1] == largest and list(sizes) == sorted(set(sizes))
        for num_tokens in range(64, largest + 1):
            assert next(size for size in sizes if size >= num_tokens) < num_tokens * 9 / 8


def test_a_head_is_padded_to_a_size_of_passes() -> None:
    for num_tokens in range(1, 513):
        padded = padded_head_size(num_tokens)
        assert num_tokens <= padded < num_tokens + 16 and padded in padded_batch_sizes(512)


def test_largest_batch_size_is_the_largest_pass() -> None:
    assert padded_batch_sizes(5000)[-1] == 5000 and padded_batch_sizes(100)[-1] == 96
    for max_tokens, largest in ((512, 512), (4096, 4096), (600, 600), (300, 288)):
        assert padded_batch_sizes(max_tokens)[-1] == largest
