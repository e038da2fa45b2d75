"""HTTP clients within bounds, shared by the engines that call servers."""
