// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/lowp"
)

func (c *checker) checkNormal(s *shape, f ep.Format, plane *ep.Normal, slab []lowp.BF16) error {
	return nil
}
