"""Debug pages by istiod's names, over HTTP (``pages``) and over xDS (``streams``), for istioctl."""
