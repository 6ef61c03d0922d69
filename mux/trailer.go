package mux

// Tell makes a file that Finish completes say these counts of itself.
func (w *Writer) Tell(c Counts) { w.counts = &c }

// trailer writes the end of the output. Nothing may stand behind the index of a fragmented MP4 and the segment of a Matroska file; what
// stands in front of the index of an ordinary MP4 becomes a part of its pictures.
func (w *Writer) trailer() error {
	var counts, end []byte
	if w.counts != nil && w.o.Seek {
		counts = w.counts.encode(w.o.Format)
	}
	if w.o.Format == MP4 || w.o.Format == TS {
		end, counts = counts, nil
	}
	if w.marked() {
		end = append(end, tsEnd...)
	}
	if len(counts) > 0 {
		if err := w.out.Append(counts); err != nil {
			return err
		}
	}
	if err := w.out.Finish(); err != nil {
		return err
	}
	if w.head == nil {
		if len(end) == 0 {
			return nil
		}
		_, err := w.o.Out.Write(end)
		return err
	}
	if _, err := w.head.Write(end); err != nil {
		return err
	}
	if w.o.OnFlush != nil { // it can be played as it is
		if err := w.o.OnFlush(); err != nil {
			return err
		}
	}
	return w.head.apply()
}
