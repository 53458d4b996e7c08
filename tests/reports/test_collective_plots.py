from perfmodel.reports.collective_plots import SizeCurve, plot_sizes


def test_a_picture_shows_curves_points_and_switches(tmp_path):
    path = tmp_path / "sizes.png"
    curve = SizeCurve(
        label="all_reduce $_{^$",
        sizes_bytes=[1e3, 1e6, 1e9],
        durations_ns=[1e4, 5e4, 5e6],
        bus_factor=1.75,
        low_ns=[9e3, 4e4, 4e6],
        high_ns=[2e4, 6e4, 6e6],
        measured_bytes=[1e6],
        measured_ns=[4.5e4],
        switches=[(1e6, "ring/simple")],
    )
    plot_sizes([curve], path, title="a $_{^$ machine")
    assert path.read_bytes()[:4] == b"\x89PNG"
