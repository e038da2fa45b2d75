"""The runner on OpenVINO's paged attention: its graph, its blocks of memory and its proof."""
