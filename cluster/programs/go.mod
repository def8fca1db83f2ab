module fairlead.dev/cluster/programs

go 1.26.0
