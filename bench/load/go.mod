module mesh-pilot/bench/load

go 1.22
