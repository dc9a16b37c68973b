module github.com/kvfs/kvfs/clients/go

go 1.23
