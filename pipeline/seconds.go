package pipeline

import (
	"encoding/json"
	"math"
	"time"
)

// Seconds is a duration that is a number of seconds in JSON.
type Seconds time.Duration

// Seconds returns the duration as a number of seconds.
func (s Seconds) Seconds() float64 { return time.Duration(s).Seconds() }

// MarshalJSON implements json.Marshaler.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(s.Seconds()) }

// UnmarshalJSON implements json.Unmarshaler.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*s = Seconds(math.Round(f * float64(time.Second)))
	return nil
}
