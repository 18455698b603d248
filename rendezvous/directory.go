// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"time"
)

// record is what rank 0 publishes about its coordinator.
type record struct {
	Job     string    `json:"job"`
	Session string    `json:"session"` // verified in every Hello: an address may have a new owner
	Addrs   []string  `json:"addrs"`
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Started time.Time `json:"started"`
}

func (r *record) targets() []target {
	out := make([]target, len(r.Addrs))
	for i, a := range r.Addrs {
		out[i] = target{"tcp", a}
	}
	return out
}

// directory is a shared place where rank 0 publishes its record.
type directory interface {
	lookup(ctx context.Context) (*record, error)
	where() string
}

func (p *plan) useFile(endpoint string) error { return errors.ErrUnsupported }
func (p *plan) useEtcd(endpoint string) error { return errors.ErrUnsupported }

func holdPublished(ctx context.Context, p *plan, hello *msgHello) ([]target, func(context.Context) error, error) {
	return nil, nil, errors.ErrUnsupported
}
