"""Import paths of scripts written for `tmrl`. This package contains only re-exports."""
