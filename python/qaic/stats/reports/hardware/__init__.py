"""Reports about cores, engines, memory and the traffic between them."""
